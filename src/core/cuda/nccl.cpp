#include "core/cuda/nccl.h"

#include <fmt/core.h>

#include "core/cuda/library.h"
#include "core/cuda/rank_link.h"
#include "core/gpu_of_rank.h"
#include "ebb/error.h"

namespace ebb::cuda {
namespace {

// Graphs with exchanges between ranks, and aborting them, work from this version on.
constexpr int oldest = 21800;

Nccl load() {
  const Library library("NCCL, which connects the GPUs of several ranks,",
                        {"libnccl.so.2", "libnccl.so"});
  Nccl n;
  library.find("ncclGetVersion", n.get_version);
  library.find("ncclGetUniqueId", n.get_unique_id);
  library.find("ncclCommInitRank", n.init_rank);
  library.find("ncclCommDestroy", n.destroy);
  library.find("ncclCommAbort", n.abort);
  library.find("ncclCommGetAsyncError", n.async_error);
  library.find("ncclGetErrorString", n.error_text);
  library.find("ncclGetLastError", n.last_error);
  library.find("ncclGroupStart", n.group_start);
  library.find("ncclGroupEnd", n.group_end);
  library.find("ncclSend", n.send);
  library.find("ncclRecv", n.receive);
  library.find("ncclAllGather", n.all_gather);
  library.find("ncclAllReduce", n.all_reduce);
  library.find("ncclReduce", n.reduce);
  if (n.get_version(&n.version) != ncclSuccess || n.version < oldest)
    throw DeviceError(fmt::format("[cuda] NCCL {} is too old: ebb needs {} or newer",
                                  nccl_version_text(n.version), nccl_version_text(oldest)));
  return n;
}

}  // namespace

const Nccl& nccl() {
  static const Nccl functions = load();
  return functions;
}

int require_nccl() { return nccl().version; }

}  // namespace ebb::cuda
