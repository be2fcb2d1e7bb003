#include "ops/reduce/reduce_kernels.cuh"

namespace ebb {

Kernel bind_max_cuda(const KernelRequest& request, const ReduceAttributes& a) {
  return bind<fold::Max>(request, a, ReduceKind::max);
}
JoinSlices join_max(DType dtype) { return join_of<fold::Max>(dtype); }

}  // namespace ebb
