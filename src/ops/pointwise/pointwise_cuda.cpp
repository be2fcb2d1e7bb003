// Pointwise programs on CUDA: NVRTC compiles them for the way in which their operands are reached.
#include "core/cuda/check.h"
#include "core/cuda/cuda.h"
#include "core/cuda/runtime_kernel.h"
#include "ops/pointwise/operands_cuda.h"

namespace ebb {
namespace {

constexpr std::int64_t threads = 256;

struct Bound {
  PointwiseOperands operands;
  cudaKernel_t kernel = nullptr;
  unsigned blocks = 0;

  void operator()(const KernelArgs& args) const {
    if (blocks == 0) return;
    PointwiseParameters p = operands.at(args);
    p.out = args.outputs[0];
    void* list[] = {&p};
    EBB_CUDA_CHECK(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks),
                                    dim3(static_cast<unsigned>(threads)), list, 0,
                                    static_cast<cudaStream_t>(args.stream)));
  }
};

}  // namespace

Kernel bind_pointwise_cuda(const KernelRequest& request, const FusedAttributes& program) {
  Bound bound{.operands = {request, program}};
  const PointwiseAccess& access = bound.operands.access;
  const std::int64_t elements = program.shape.elements();
  const std::int64_t items =
      elements / access.width + (access.rank == 1 ? elements % access.width : 0);
  bound.blocks = static_cast<unsigned>((items + threads - 1) / threads);

  if (request.target.purpose == Purpose::run)
    bound.kernel =
        cuda::runtime_kernel(request.target.device, pointwise_source(program, access), "pointwise");
  return {bound};
}

}  // namespace ebb
