#include "ops/attention/attention_mma.cuh"

namespace ebb::attention {

template void forward_mma<float, 32>(const KernelArgs&, const CudaProblem&,
                                     const ForwardArgs<float>&);

}  // namespace ebb::attention
