#include "ops/attention/attention_mma.cuh"

namespace ebb::attention {

template void forward_mma<BFloat16, 256>(const KernelArgs&, const CudaProblem&,
                                         const ForwardArgs<BFloat16>&);

}  // namespace ebb::attention
