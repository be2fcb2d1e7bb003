// layer_norm and rms_norm over contiguous rows. A row is read from memory once: it stays in the
// first-level cache for its mean, its mean square and the result.
#include <cmath>

#include "core/parallel.h"
#include "ops/row_axis.h"
#include "ops/row_math.h"
#include "ops/row_norm/row_norm.h"

namespace ebb {
namespace {

constexpr auto product = [](auto& total, const auto& a, const auto& b) { total += a * b; };

// --- Forward

template <class S>
void write_row(const S* x, const S* weight, const S* bias, S* y, Compute<S> mean, Compute<S> rstd,
               std::int64_t columns) {
  using T = Compute<S>;
  rows::TileReader<S> read_x, read_weight, read_bias;
  rows::TileWriter<S> write;
  rows::for_tiles(columns, [&](std::int64_t at, std::int64_t count) {
    const T* in = read_x(x + at, count);
    const T* w = weight ? read_weight(weight + at, count) : nullptr;
    const T* b = bias ? read_bias(bias + at, count) : nullptr;
    T* out = write.begin(y + at);
    const auto fill = [&](const auto& value) {
#pragma GCC ivdep  // y may be x itself
      for (std::int64_t i = 0; i < count; ++i) out[i] = value(i);
    };
    if (w && b)
      fill([=](std::int64_t i) { return (in[i] - mean) * rstd * w[i] + b[i]; });
    else if (w)
      fill([=](std::int64_t i) { return (in[i] - mean) * rstd * w[i]; });
    else if (b)
      fill([=](std::int64_t i) { return (in[i] - mean) * rstd + b[i]; });
    else
      fill([=](std::int64_t i) { return (in[i] - mean) * rstd; });
    write.end(y + at, count);
  });
}

template <class S, Centring centring>
void run_forward(const KernelArgs& args, RowShape shape, const RowNormAttributes& a) {
  using T = Compute<S>;
  const S* weight = a.weight ? args.in<S>(1) : nullptr;
  const S* bias = a.bias ? args.in<S>(a.weight ? 2 : 1) : nullptr;
  T* means = centring == Centring::yes ? args.out<T>(1) : nullptr;
  T* rstds = args.out<T>(centring == Centring::yes ? 2 : 1);
  parallel_for(shape.rows, rows::grain(shape.columns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const S* x = args.in<S>(0) + r * shape.columns;
      const T mean = means ? rows::mean(x, shape.columns) : T(0);
      const double square =
          rows::squared_deviation(x, mean, shape.columns) / static_cast<double>(shape.columns);
      const T rstd = static_cast<T>(1.0 / std::sqrt(square + a.eps));
      if (means) means[r] = mean;
      rstds[r] = rstd;
      write_row(x, weight, bias, args.out<S>() + r * shape.columns, mean, rstd, shape.columns);
    }
  });
}

// --- Backward
//
// With v = (x - mean) · rstd and s = g · weight, the gradient of a row is
//   dx = rstd · (s - mean(s) - v · mean(s · v))
// and the gradients of weight and bias are Σ g · v and Σ g over all rows. Another gradient of x is
// added after dx is rounded, like a separate sum. Rows are divided into slices whose number depends
// only on the shape; each slice has its own sums, added in order at the end.

struct Slices {
  std::int64_t count, width;  // width: elements of the sums of one slice
  Slices(RowShape shape, const RowNormGradAttributes& a)
      : count(std::clamp<std::int64_t>(shape.rows / 32, 1, 32)),
        width(shape.columns * (a.weight_grad + a.bias_grad + a.sum)) {}
};

// One row. Sums that are not requested are null; the last is over dx.
template <class S, Centring centring, bool weighted>
void backward_row(const S* x, const S* g, const S* weight, const S* added, S* dx, Compute<S> mean,
                  Compute<S> rstd, Compute<S>* weight_sum, Compute<S>* bias_sum, Compute<S>* dx_sum,
                  std::int64_t columns) {
  using T = Compute<S>;
  rows::TileReader<S> read_x, read_g, read_weight, read_added, read_rounded;
  rows::TileWriter<S> write;
  double total = 0.0, total_centred = 0.0;  // Σ s, Σ s · (x - mean)
  rows::for_tiles(columns, [&](std::int64_t at, std::int64_t count) {
    const T *in = read_x(x + at, count), *up = read_g(g + at, count);
    const auto centred = [mean](auto& sum, const auto& s, const auto& v) { sum += s * (v - mean); };
    if constexpr (weighted) {
      const T* w = read_weight(weight + at, count);
      if constexpr (centring == Centring::yes)
        total += static_cast<double>(rows::fold(T(0), count, rows::plus, product, up, w));
      total_centred += static_cast<double>(rows::fold(
          T(0), count, rows::plus,
          [mean](auto& sum, const auto& a, const auto& b, const auto& v) {
            sum += a * b * (v - mean);
          },
          up, w, in));
    } else {
      if constexpr (centring == Centring::yes)
        total += static_cast<double>(rows::fold(T(0), count, rows::plus, rows::plus, up));
      total_centred += static_cast<double>(rows::fold(T(0), count, rows::plus, centred, up, in));
    }
  });
  const double n = static_cast<double>(columns);
  const T offset = static_cast<T>(total / n);
  const T slope =
      static_cast<T>(total_centred / n * static_cast<double>(rstd) * static_cast<double>(rstd));
  rows::for_tiles(columns, [&](std::int64_t at, std::int64_t count) {
    const T *in = read_x(x + at, count), *up = read_g(g + at, count);
    const T* w = weighted ? read_weight(weight + at, count) : nullptr;
    T* out = write.begin(dx + at);
    // The usual case in one loop; sums that only some ask for in loops of their own.
    if (weight_sum && bias_sum) {
      T *weight_sums = weight_sum + at, *bias_sums = bias_sum + at;
#pragma GCC ivdep  // dx may be x or g itself
      for (std::int64_t i = 0; i < count; ++i) {
        const T centred = in[i] - mean, up_i = up[i];
        weight_sums[i] += up_i * (centred * rstd);
        bias_sums[i] += up_i;
        out[i] = rstd * ((weighted ? up_i * w[i] : up_i) - offset - centred * slope);
      }
    } else {
      for (std::int64_t i = 0; weight_sum && i < count; ++i)
        weight_sum[at + i] += up[i] * ((in[i] - mean) * rstd);
      for (std::int64_t i = 0; bias_sum && i < count; ++i) bias_sum[at + i] += up[i];
#pragma GCC ivdep  // dx may be x or g itself
      for (std::int64_t i = 0; i < count; ++i)
        out[i] = rstd * ((weighted ? up[i] * w[i] : up[i]) - offset - (in[i] - mean) * slope);
    }
    write.end(dx + at, count);
    if (added) {
      const T *rounded = read_rounded(dx + at, count), *other = read_added(added + at, count);
      T* total_out = write.begin(dx + at);
#pragma GCC ivdep  // each element is read before it is written
      for (std::int64_t i = 0; i < count; ++i) total_out[i] = rounded[i] + other[i];
      write.end(dx + at, count);
    }
    if (dx_sum) {
      const T* rounded = read_rounded(dx + at, count);
      for (std::int64_t i = 0; i < count; ++i) dx_sum[at + i] += rounded[i];
    }
  });
}

// out[j] = Σ over slices of sums[slice · width + j], in double.
template <class S>
void join_slices(const Compute<S>* sums, Slices slices, S* out, std::int64_t columns) {
  parallel_for(columns, 4096, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = begin; j < end; ++j) {
      double total = 0.0;
      for (std::int64_t s = 0; s < slices.count; ++s)
        total += static_cast<double>(sums[s * slices.width + j]);
      out[j] = static_cast<S>(static_cast<Compute<S>>(total));
    }
  });
}

template <class S, Centring centring, bool weighted>
void run_backward(const KernelArgs& args, RowShape shape, const RowNormGradAttributes& a) {
  using T = Compute<S>;
  constexpr bool centred = centring == Centring::yes;
  const std::int64_t columns = shape.columns;
  const RowNormGradInputs at(centring, a);
  const T* means = centred ? args.in<T>(2) : nullptr;
  const T* rstds = args.in<T>(static_cast<int>(at.rstd));
  const S* weight = weighted ? args.in<S>(static_cast<int>(at.weight)) : nullptr;
  const S* added = a.added ? args.in<S>(static_cast<int>(at.added)) : nullptr;
  const Slices slices(shape, a);
  T* sums = args.scratch<T>();
  parallel_for(slices.count, 1 + 16384 / (1 + shape.rows / slices.count * columns),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t slice = begin; slice < end; ++slice) {
                   T* own = sums + slice * slices.width;
                   std::fill_n(own, slices.width, T(0));
                   T* weight_sum = a.weight_grad ? own : nullptr;
                   T* bias_sum = a.bias_grad ? own + a.weight_grad * columns : nullptr;
                   T* dx_sum = a.sum ? own + (a.weight_grad + a.bias_grad) * columns : nullptr;
                   const std::int64_t last = shape.rows * (slice + 1) / slices.count;
                   for (std::int64_t r = shape.rows * slice / slices.count; r < last; ++r)
                     backward_row<S, centring, weighted>(
                         args.in<S>(0) + r * columns, args.in<S>(1) + r * columns, weight,
                         added ? added + r * columns : nullptr, args.out<S>() + r * columns,
                         centred ? means[r] : T(0), rstds[r], weight_sum, bias_sum, dx_sum,
                         columns);
                 }
               });
  for (std::int64_t k = 0; k * columns < slices.width; ++k)
    join_slices(sums + k * columns, slices, args.out<S>(static_cast<int>(k) + 1), columns);
}

}  // namespace

template <Centring centring>
Kernel bind_row_norm_cpu(const KernelRequest& request, const RowNormAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    return Kernel{[shape = RowShape(request.out().shape()), a](const KernelArgs& args) {
      run_forward<S, centring>(args, shape, a);
    }};
  });
}

template <Centring centring>
Kernel bind_row_norm_grad_cpu(const KernelRequest& request, const RowNormGradAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const RowShape shape(request.out().shape());
    const Slices slices(shape, a);
    const auto run = a.weight ? run_backward<S, centring, true> : run_backward<S, centring, false>;
    return Kernel{
        [run, shape, a](const KernelArgs& args) { run(args, shape, a); },
        Bytes{slices.count * slices.width * static_cast<std::int64_t>(sizeof(Compute<S>))}};
  });
}

template Kernel bind_row_norm_cpu<Centring::no>(const KernelRequest&, const RowNormAttributes&);
template Kernel bind_row_norm_cpu<Centring::yes>(const KernelRequest&, const RowNormAttributes&);
template Kernel bind_row_norm_grad_cpu<Centring::no>(const KernelRequest&,
                                                     const RowNormGradAttributes&);
template Kernel bind_row_norm_grad_cpu<Centring::yes>(const KernelRequest&,
                                                      const RowNormGradAttributes&);

}  // namespace ebb
