#include "ops/attention/attention_grad_wgmma.cuh"

namespace ebb::attention {

template bool wide::backward<Half, true>(const KernelArgs&, const CudaProblem&,
                                         const BackwardArgs<Half>&);

}  // namespace ebb::attention
