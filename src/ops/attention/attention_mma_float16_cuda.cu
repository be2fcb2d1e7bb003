#include "ops/attention/attention_mma.cuh"

namespace ebb::attention {

template void forward_mma<Half, 64>(const KernelArgs&, const CudaProblem&,
                                    const ForwardArgs<Half>&);
template void forward_mma<Half, 128>(const KernelArgs&, const CudaProblem&,
                                     const ForwardArgs<Half>&);

}  // namespace ebb::attention
