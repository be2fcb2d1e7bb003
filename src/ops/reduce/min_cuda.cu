#include "ops/reduce/reduce_kernels.cuh"

namespace ebb {

Kernel bind_min_cuda(const KernelRequest& request, const ReduceAttributes& a) {
  return bind<fold::Min>(request, a, ReduceKind::min);
}
JoinSlices join_min(DType dtype) { return join_of<fold::Min>(dtype); }

}  // namespace ebb
