#include "ops/attention/attention_grad_wgmma.cuh"

namespace ebb::attention {

template bool wide::backward<BFloat16, true>(const KernelArgs&, const CudaProblem&,
                                             const BackwardArgs<BFloat16>&);

}  // namespace ebb::attention
