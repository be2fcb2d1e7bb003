// layer_norm and rms_norm over contiguous rows. A row is read once, into registers where it fits.
#include "ops/cuda/rows.cuh"
#include "ops/resident/steps.h"
#include "ops/row_norm/forward.cuh"
#include "ops/row_norm/row_norm.h"

namespace ebb {
namespace {

using namespace cuda;

template <class Type>
struct Rows {
  RowNormForward<Type> forward;

  template <class S, class Walk>
  __device__ void row(std::int64_t r, const Walk& walk) const {
    forward.row(r, walk);
  }
};

template <class S>
RowNormForward<S> forward_of(const KernelArgs& args, const RowNormAttributes& a, bool centred) {
  return {args.in<S>(0),
          a.weight ? args.in<S>(1) : nullptr,
          a.bias ? args.in<S>(a.weight ? 2 : 1) : nullptr,
          args.out<S>(),
          centred ? args.out<Compute<S>>(1) : nullptr,
          args.out<Compute<S>>(centred ? 2 : 1),
          a.eps,
          centred};
}

template <class S>
bool takes_packs(const RowNormForward<S>& f) {
  return aligned_for_packs(f.in, f.out) && aligned_for_packs(f.weight, f.bias);
}

}  // namespace

template <Centring centring>
Kernel bind_row_norm_cuda(const KernelRequest& request, const RowNormAttributes& a) {
  const bool centred = centring == Centring::yes;
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const RowShape shape(request.out().shape());
    const auto run = [shape, a, centred](const KernelArgs& args) {
      const RowNormForward<S> forward = forward_of<S>(args, a, centred);
      launch_rows<S>(args, "row_norm", Rows<S>{forward}, shape, takes_packs(forward));
    };
    if constexpr (sizeof(S) != 2) return Kernel{run};
    resident::Step step = resident::step(request, run);
    step.task = [shape, a, centred](const KernelArgs& args) -> std::optional<resident::Task> {
      const RowNormForward<S> f = forward_of<S>(args, a, centred);
      if (!takes_packs(f) || !resident::takes_norm(shape.rows, shape.columns)) return {};
      return resident::Norm{f.in,
                            f.weight,
                            f.bias,
                            f.out,
                            f.means,
                            f.rstds,
                            f.eps,
                            static_cast<std::int32_t>(shape.rows),
                            static_cast<std::int32_t>(shape.columns)};
    };
    return Kernel{step};
  });
}

template Kernel bind_row_norm_cuda<Centring::no>(const KernelRequest&, const RowNormAttributes&);
template Kernel bind_row_norm_cuda<Centring::yes>(const KernelRequest&, const RowNormAttributes&);

}  // namespace ebb
