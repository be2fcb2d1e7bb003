// layer_norm and rms_norm over contiguous rows. A row is read once, into registers where it fits.
#include "ops/cuda/rows.cuh"
#include "ops/row_norm/row_norm.h"

namespace ebb {
namespace {

using namespace cuda;

struct Forward {
  const void *in, *weight, *bias;  // the last two may be null
  void *out, *means, *rstds;       // means is null without centring
  double eps;

  template <class S, class Walk>
  __device__ void row(std::int64_t r, const Walk& walk) const {
    using T = Compute<S>;
    const auto x = walk.open(static_cast<const S*>(in) + r * walk.columns);
    S* y = static_cast<S*>(out) + r * walk.columns;
    const double n = static_cast<double>(walk.columns);
    const T mean = means ? static_cast<T>(walk.sum_over(x, [](T v) { return v; }) / n) : T(0);
    const double square = walk.sum_over(x, [mean](T v) { return (v - mean) * (v - mean); }) / n;
    const T rstd = static_cast<T>(1.0 / square_root(square + eps));
    if (walk.lane == 0) {
      if (means) static_cast<T*>(means)[r] = mean;
      static_cast<T*>(rstds)[r] = rstd;
    }
    walk.slots([&](int slot, std::int64_t column) {
      T v[Walk::width], w[Walk::width], b[Walk::width];
      x.get(slot, column, v);
      if (weight) walk.load(static_cast<const S*>(weight) + column, w);
      if (bias) walk.load(static_cast<const S*>(bias) + column, b);
#pragma unroll
      for (int k = 0; k < Walk::width; ++k) {
        v[k] = (v[k] - mean) * rstd;
        if (weight) v[k] *= w[k];
        if (bias) v[k] += b[k];
      }
      walk.store(y + column, v);
    });
  }
};

}  // namespace

template <Centring centring>
Kernel bind_row_norm_cuda(const KernelRequest& request, const RowNormAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    return Kernel{[shape = RowShape(request.out().shape()), a](const KernelArgs& args) {
      constexpr bool centred = centring == Centring::yes;
      const Forward forward{args.inputs[0],
                            a.weight ? args.inputs[1] : nullptr,
                            a.bias ? args.inputs[a.weight ? 2 : 1] : nullptr,
                            args.outputs[0],
                            centred ? args.outputs[1] : nullptr,
                            args.outputs[centred ? 2 : 1],
                            a.eps};
      launch_rows<S>(args, "row_norm", forward, shape,
                     aligned_for_packs(args.inputs[0], args.outputs[0]) &&
                         aligned_for_packs(static_cast<const std::byte*>(forward.weight),
                                           static_cast<const std::byte*>(forward.bias)));
    }};
  });
}

template Kernel bind_row_norm_cuda<Centring::no>(const KernelRequest&, const RowNormAttributes&);
template Kernel bind_row_norm_cuda<Centring::yes>(const KernelRequest&, const RowNormAttributes&);

}  // namespace ebb
