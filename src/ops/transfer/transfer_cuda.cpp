#include "core/cuda/check.h"
#include "core/cuda/context.h"
#include "ops/transfer/transfer.h"

namespace ebb {

// Pinned memory of the host has an address on the device too, so one call copies either way.
Kernel bind_transfer_cuda(const KernelRequest& request, const TransferAttributes&) {
  const auto size = static_cast<std::size_t>(request.out().type.bytes().count);
  return {.run = [size](const KernelArgs& args) {
    EBB_CUDA_CHECK(cudaMemcpyAsync(args.out<std::byte>(), args.in<std::byte>(0), size,
                                   cudaMemcpyDefault, static_cast<cudaStream_t>(args.stream)));
  }};
}

}  // namespace ebb
