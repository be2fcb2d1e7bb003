// Selects backward's warpgroup kernels, and has those of heads of up to 64.
#include "ops/attention/attention_grad_wgmma.cuh"

namespace ebb::attention {

template <class S>
bool backward_wgmma(const KernelArgs& args, const CudaProblem& p, const BackwardArgs<S>& a) {
  if (!fits_wgmma(p) || !whole_pieces(a.q, p.q, p.size) || !whole_pieces(a.k, p.k, p.size) ||
      !whole_pieces(a.v, p.v, p.value_size) || !whole_pieces(a.o, p.o, p.value_size) ||
      !whole_pieces(a.grad, p.grad, p.value_size) ||
      !aligned_for_packs(a.dq.data, a.dk.data, a.dv.data, a.delta))
    return false;
  if (std::max(p.size, p.value_size) > 64)
    return p.plain() ? wide::backward<S, true>(args, p, a) : wide::backward<S, false>(args, p, a);
  return p.plain() ? grad::run<S, 64, true>(args, p, a) : grad::run<S, 64, false>(args, p, a);
}

template bool backward_wgmma<Half>(const KernelArgs&, const CudaProblem&,
                                   const BackwardArgs<Half>&);
template bool backward_wgmma<BFloat16>(const KernelArgs&, const CudaProblem&,
                                       const BackwardArgs<BFloat16>&);

}  // namespace ebb::attention
