#include "ops/reduce/reduce_kernels.cuh"

namespace ebb {

Kernel bind_sum_cuda(const KernelRequest& request, const ReduceAttributes& a) {
  return bind<fold::Sum>(request, a, ReduceKind::sum);
}
JoinSlices join_sum(DType dtype) { return join_of<fold::Sum>(dtype); }

}  // namespace ebb
