#include "ops/attention/attention_grad_mma.cuh"

namespace ebb::attention {

template void backward_mma<float, 64>(const KernelArgs&, const CudaProblem&,
                                      const BackwardArgs<float>&);

}  // namespace ebb::attention
