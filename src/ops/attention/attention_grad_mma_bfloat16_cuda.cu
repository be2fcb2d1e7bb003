#include "ops/attention/attention_grad_mma.cuh"

namespace ebb::attention {

template void backward_mma<BFloat16, 64>(const KernelArgs&, const CudaProblem&,
                                         const BackwardArgs<BFloat16>&);
template void backward_mma<BFloat16, 128>(const KernelArgs&, const CudaProblem&,
                                          const BackwardArgs<BFloat16>&);

}  // namespace ebb::attention
