// Reductions of evaluated elements on CUDA: NVRTC compiles the program together with the device
// code of reductions, and slices are joined by the kernel that joins those of any reduction.
#include "core/cuda/check.h"
#include "core/cuda/cuda.h"
#include "core/cuda/runtime_kernel.h"
#include "ops/fused_reduce/source_cuda.h"
#include "ops/pointwise/operands_cuda.h"
#include "ops/reduce/layout_cuda.h"

namespace ebb {
namespace {

struct Bound {
  CudaReduction reduction;
  PointwiseOperands operands;
  JoinSlices join = nullptr;
  cudaKernel_t kernel = nullptr;

  void operator()(const KernelArgs& args) const {
    PointwiseParameters p = operands.at(args);
    cuda::fold::Problem problem = reduction.p;
    const bool sliced = problem.slices > 1;
    FusedReduceOutput output{args.outputs[0], sliced ? args.workspace : nullptr};
    void* list[] = {&p, &problem, &output};
    EBB_CUDA_CHECK(cudaLaunchKernel(reinterpret_cast<const void*>(kernel),
                                    reduction.grid(reduction.width), reduction.block(), list, 0,
                                    static_cast<cudaStream_t>(args.stream)));
    if (sliced) join(args, reduction, args.workspace);
  }
};

}  // namespace

Kernel bind_fused_reduce_cuda(const KernelRequest& request, const FusedReduceAttributes& a) {
  const Arg unfused = a.unfused();
  const CudaReduction reduction(unfused, a.reduce.axes);
  Bound bound{reduction, PointwiseOperands(request, a.program, reduction.width),
              join_slices(a.kind, unfused.dtype())};
  if (request.target.purpose == Purpose::run) {
    using Walk = FusedReduceAccess::Walk;
    const FusedReduceAccess access{.operands = bound.operands.access,
                                   .width = reduction.width,
                                   .walk = !reduction.inner_reduced ? Walk::columns
                                           : reduction.warps        ? Walk::warps
                                                                    : Walk::blocks};
    bound.kernel =
        cuda::runtime_kernel(request.target.device, fused_reduce_source(a, access), "fused_reduce");
  }
  return {bound, reduction.partials(a.kind, unfused.dtype())};
}

}  // namespace ebb
