#include "ops/attention/attention_grad_mma.cuh"

namespace ebb::attention {

template void backward_mma<Half, 256>(const KernelArgs&, const CudaProblem&,
                                      const BackwardArgs<Half>&);

}  // namespace ebb::attention
