#include "ops/attention/attention_mma.cuh"

namespace ebb::attention {

template void forward_mma<Half, 256>(const KernelArgs&, const CudaProblem&,
                                     const ForwardArgs<Half>&);

}  // namespace ebb::attention
