#include "ops/attention/attention_grad_mma.cuh"

namespace ebb::attention {

template void backward_mma<BFloat16, 256>(const KernelArgs&, const CudaProblem&,
                                          const BackwardArgs<BFloat16>&);

}  // namespace ebb::attention
