#include "ops/attention/attention_wide_wgmma.cuh"

namespace ebb::attention {

template bool wide::forward<BFloat16>(const KernelArgs&, const CudaProblem&,
                                      const ForwardArgs<BFloat16>&);

}  // namespace ebb::attention
