#include "ops/attention/attention_wide_wgmma.cuh"

namespace ebb::attention {

template bool wide::forward<Half>(const KernelArgs&, const CudaProblem&, const ForwardArgs<Half>&);

}  // namespace ebb::attention
