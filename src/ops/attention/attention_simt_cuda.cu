#include "ops/attention/attention_simt.cuh"

namespace ebb::attention {

template void forward_simt<double>(const KernelArgs&, const CudaProblem&,
                                   const ForwardArgs<double>&);
template void backward_simt<double>(const KernelArgs&, const CudaProblem&,
                                    const BackwardArgs<double>&);
template void forward_simt<float>(const KernelArgs&, const CudaProblem&, const ForwardArgs<float>&);
template void backward_simt<float>(const KernelArgs&, const CudaProblem&,
                                   const BackwardArgs<float>&);

}  // namespace ebb::attention
