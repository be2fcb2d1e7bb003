// Stands in for NCCL in a build without CUDA or without NCCL's header.
#include "core/cuda/rank_link.h"
#include "ebb/error.h"

namespace ebb::cuda {

int require_nccl() {
  throw DeviceError(
      "this build of ebb has no NCCL, which connects the GPUs of several ranks; it is built where "
      "CUDA and nccl.h are found (libnccl-dev)");
}

std::shared_ptr<RankLink> rank_link(const std::shared_ptr<Communicator>&, Device) {
  require_nccl();
  return nullptr;
}

}  // namespace ebb::cuda
