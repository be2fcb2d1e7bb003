#include "ops/attention/attention_simt.cuh"

namespace ebb::attention {

template void forward_simt<Half>(const KernelArgs&, const CudaProblem&, const ForwardArgs<Half>&);
template void backward_simt<Half>(const KernelArgs&, const CudaProblem&, const BackwardArgs<Half>&);
template void forward_simt<BFloat16>(const KernelArgs&, const CudaProblem&,
                                     const ForwardArgs<BFloat16>&);
template void backward_simt<BFloat16>(const KernelArgs&, const CudaProblem&,
                                      const BackwardArgs<BFloat16>&);

}  // namespace ebb::attention
