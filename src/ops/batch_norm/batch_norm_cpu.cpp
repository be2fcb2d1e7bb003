// Batch normalisation of x as (N, C, S), where S is the number of elements of a channel in one
// sample.
//
// Channels are independent and are divided among threads. With a long S, a channel consists of N
// runs in memory, each summed and normalised separately. With a short S (1 after a linear layer and
// with the channels last), blocks of neighbouring channels are processed together, one column of
// (N, C · S) per vector lane. In both cases the order of sums depends on the shape alone. y may be
// x, and dx may be x or g.
#include <cmath>

#include "core/parallel.h"
#include "ops/batch_norm/batch_norm.h"
#include "ops/row_math.h"

namespace ebb {
namespace {

constexpr std::int64_t long_run = 16;  // from here on runs are summed along memory
constexpr std::int64_t block_columns = 64;

struct Extent : ChannelExtent {
  using ChannelExtent::ChannelExtent;
  double per_channel() const { return static_cast<double>(samples * run); }
  std::int64_t sample_stride() const { return channels * run; }
  bool long_runs() const { return run >= long_run; }
  std::int64_t block_channels() const {
    return long_runs() ? 1
                       : std::max<std::int64_t>(1, block_columns / std::max<std::int64_t>(run, 1));
  }
};

// A parameter of one channel, and one that differs from column to column.
template <class T>
struct Same {
  T value;
  T operator[](std::int64_t) const { return value; }
};
template <class T>
struct Columns {
  T values[block_columns];
  T operator[](std::int64_t i) const { return values[i]; }
};

// Calls body(offset, count) for each contiguous piece of channels [first, last).
template <class Body>
void for_pieces(const Extent& e, std::int64_t first, std::int64_t last, const Body& body) {
  const std::int64_t width = (last - first) * e.run;
  for (std::int64_t n = 0; n < e.samples; ++n)
    rows::for_tiles(width, [&](std::int64_t at, std::int64_t count) {
      body(n * e.sample_stride() + first * e.run + at, count);
    });
}

// Calls body(first, last) for blocks of channels.
template <class Body>
void for_blocks(const Extent& e, const Body& body) {
  const std::int64_t step = e.block_channels(), blocks = (e.channels + step - 1) / step;
  parallel_for(blocks, rows::grain(e.samples * e.run * step),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t b = begin; b < end; ++b)
                   body(b * step, std::min(e.channels, (b + 1) * step));
               });
}

// totals[c] = the sum over channel c of a block, where step(sums, offset, count) adds part of one
// sample to sums of columns. `totals` has room for all columns.
template <class Step>
void sum_columns(const Extent& e, std::int64_t first, std::int64_t last, double* totals,
                 const Step& step) {
  const std::int64_t width = (last - first) * e.run;
  std::fill_n(totals, width, 0.0);
  for_pieces(e, first, last, [&](std::int64_t at, std::int64_t count) { step(totals, at, count); });
  // Joins the columns of each channel.
  for (std::int64_t c = 0; c < last - first; ++c) {
    double total = 0.0;
    for (std::int64_t k = 0; k < e.run; ++k) total += totals[c * e.run + k];
    totals[c] = total;
  }
}

// Spreads a value for each channel of a block over its columns.
template <class T, class Value>
Columns<T> spread(const Extent& e, std::int64_t first, std::int64_t last, const Value& value) {
  Columns<T> columns;
  for (std::int64_t j = 0; j < (last - first) * e.run; ++j)
    columns.values[j] = value(first + j / e.run);
  return columns;
}

// --- Forward

// Mean and variance of a channel in one pass over memory: each piece is centred on its own mean
// while it is in the first-level cache, and the pieces are combined by the formula for merging two
// samples.
template <class S>
void moments_of_runs(const Extent& e, const S* x, std::int64_t channel, Compute<S>* mean,
                     Compute<S>* var) {
  using T = Compute<S>;
  rows::TileReader<S> read;
  double seen = 0.0, centre = 0.0, squares = 0.0;
  for_pieces(e, channel, channel + 1, [&](std::int64_t at, std::int64_t count) {
    const T* in = read(x + at, count);
    const double n = static_cast<double>(count), all = seen + n;
    const double sum = static_cast<double>(rows::fold(T(0), count, rows::plus, rows::plus, in));
    const T own = static_cast<T>(sum / n);
    const double deviation = static_cast<double>(rows::fold(
        T(0), count, rows::plus,
        [own](auto& total, const auto& v) {
          const auto centred = v - own;
          total += centred * centred;
        },
        in));
    const double gap = static_cast<double>(own) - centre;
    squares += deviation + gap * gap * seen * n / all;
    centre += gap * n / all;
    seen = all;
  });
  *mean = static_cast<T>(centre);
  *var = static_cast<T>(squares / e.per_channel());
}

template <class S>
void moments_of_columns(const Extent& e, const S* x, std::int64_t first, std::int64_t last,
                        Compute<S>* means, Compute<S>* vars) {
  using T = Compute<S>;
  rows::TileReader<S> read;
  double totals[block_columns];
  sum_columns(e, first, last, totals, [&](double* sums, std::int64_t at, std::int64_t count) {
    const T* in = read(x + at, count);
    for (std::int64_t i = 0; i < count; ++i) sums[i] += static_cast<double>(in[i]);
  });
  for (std::int64_t c = first; c < last; ++c)
    means[c] = static_cast<T>(totals[c - first] / e.per_channel());
  const auto mean = spread<T>(e, first, last, [&](std::int64_t c) { return means[c]; });
  sum_columns(e, first, last, totals, [&](double* sums, std::int64_t at, std::int64_t count) {
    const T* in = read(x + at, count);
    for (std::int64_t i = 0; i < count; ++i) {
      const double centred = static_cast<double>(in[i] - mean[i]);
      sums[i] += centred * centred;
    }
  });
  for (std::int64_t c = first; c < last; ++c)
    vars[c] = static_cast<T>(totals[c - first] / e.per_channel());
}

// y = (x - mean) · scale + shift. Not inlined: forward and backward must round identically, so that
// relu's mask is the same in both.
template <class T, class P>
[[gnu::noinline]] void normalise(const T* x, T* y, std::int64_t count, const P& mean,
                                 const P& scale, const P& shift) {
#pragma GCC ivdep  // y may be x itself
  for (std::int64_t i = 0; i < count; ++i) y[i] = (x[i] - mean[i]) * scale[i] + shift[i];
}

enum class Relu : bool { no, yes };

// `added` may be null, and y may lie over it.
template <class S, class P>
void write_block(const Extent& e, const S* x, const S* added, S* y, std::int64_t first,
                 std::int64_t last, const P& mean, const P& scale, const P& shift, Relu relu) {
  using T = Compute<S>;
  rows::TileReader<S> read, read_added;
  rows::TileWriter<S> write;
  for_pieces(e, first, last, [&](std::int64_t at, std::int64_t count) {
    T* out = write.begin(y + at);
    if (added) {
      T alone[rows::tile];
      normalise(read(x + at, count), alone, count, mean, scale, shift);
      const T* other = read_added(added + at, count);
      for (std::int64_t i = 0; i < count; ++i)
        out[i] = static_cast<T>(static_cast<S>(alone[i])) + other[i];
    } else {
      normalise(read(x + at, count), out, count, mean, scale, shift);
    }
    if (relu == Relu::yes)
      for (std::int64_t i = 0; i < count; ++i) out[i] = out[i] < -lost_in<S> ? T(0) : out[i];
    write.end(y + at, count);
  });
}

template <class T>
T reciprocal_deviation(T var, double eps) {
  return static_cast<T>(1.0 / std::sqrt(static_cast<double>(var) + eps));
}

template <class S>
void run_forward(const KernelArgs& args, const Extent& e, const BatchNormAttributes& a) {
  using T = Compute<S>;
  const S* x = args.in<S>(0);
  const S* weight = a.weight ? args.in<S>(1) : nullptr;
  const S* bias = a.bias ? args.in<S>(a.bias_input()) : nullptr;
  const S* added = a.added ? args.in<S>(a.added_input()) : nullptr;
  S* y = args.out<S>(0);
  T *means = args.out<T>(1), *vars = args.out<T>(2);
  const auto mean = [&](std::int64_t c) { return means[c]; };
  const auto scale = [&](std::int64_t c) {
    return reciprocal_deviation(vars[c], a.eps) * (weight ? static_cast<T>(weight[c]) : T(1));
  };
  const auto shift = [&](std::int64_t c) { return bias ? static_cast<T>(bias[c]) : T(0); };
  const Relu relu{a.relu};
  for_blocks(e, [&](std::int64_t first, std::int64_t last) {
    if (e.long_runs()) {
      moments_of_runs(e, x, first, means + first, vars + first);
      write_block(e, x, added, y, first, last, Same<T>{mean(first)}, Same<T>{scale(first)},
                  Same<T>{shift(first)}, relu);
    } else {
      moments_of_columns(e, x, first, last, means, vars);
      write_block(e, x, added, y, first, last, spread<T>(e, first, last, mean),
                  spread<T>(e, first, last, scale), spread<T>(e, first, last, shift), relu);
    }
  });
}

// --- Backward
//
// With v = (x - mean) · rstd, the gradients of weight and bias are Σ g · v and Σ g, and
//   dx = weight · rstd · (g - mean(g) - v · mean(g · v)).

struct Sums {
  double g = 0.0, g_centred = 0.0;  // Σ g, Σ g · (x - mean)
};

// Reads parts of x and of g, with relu's mask applied to g.
template <class S, class P>
class PieceReader {
 public:
  using T = Compute<S>;
  PieceReader(const S* x, const S* g, const P& mean, const P& scale, const P& shift, Relu relu)
      : x_(x), g_(g), mean_(mean), scale_(scale), shift_(shift), relu_(relu) {}

  const T* gradient(std::int64_t at, std::int64_t count) {
    return relu_ == Relu::no ? read_g_(g_ + at, count) : (*this)(at, count).g;
  }
  struct Piece {
    const T *x, *g;
  };
  Piece operator()(std::int64_t at, std::int64_t count) {
    const T *x = read_x_(x_ + at, count), *g = read_g_(g_ + at, count);
    if (relu_ == Relu::no) return {x, g};
    normalise(x, passed_, count, mean_, scale_, shift_);
    for (std::int64_t i = 0; i < count; ++i) passed_[i] = passed_[i] <= lost_in<S> ? T(0) : g[i];
    return {x, passed_};
  }

 private:
  const S *x_, *g_;
  P mean_, scale_, shift_;  // of y
  Relu relu_;
  rows::TileReader<S> read_x_, read_g_;
  T passed_[rows::tile];
};

template <class S, class P>
Sums sums_of_runs(const Extent& e, PieceReader<S, P>& read, std::int64_t channel, Compute<S> mean) {
  using T = Compute<S>;
  Sums sums;
  for_pieces(e, channel, channel + 1, [&](std::int64_t at, std::int64_t count) {
    const auto [in, up] = read(at, count);
    sums.g += static_cast<double>(rows::fold(T(0), count, rows::plus, rows::plus, up));
    sums.g_centred += static_cast<double>(rows::fold(
        T(0), count, rows::plus,
        [mean](auto& total, const auto& b, const auto& v) { total += b * (v - mean); }, up, in));
  });
  return sums;
}

template <class S, class P>
void sums_of_columns(const Extent& e, PieceReader<S, P>& read, std::int64_t first,
                     std::int64_t last, const P& mean, Sums* sums) {
  double totals[block_columns];
  sum_columns(e, first, last, totals, [&](double* out, std::int64_t at, std::int64_t count) {
    const Compute<S>* up = read.gradient(at, count);
    for (std::int64_t i = 0; i < count; ++i) out[i] += static_cast<double>(up[i]);
  });
  for (std::int64_t c = 0; c < last - first; ++c) sums[c].g = totals[c];
  sum_columns(e, first, last, totals, [&](double* out, std::int64_t at, std::int64_t count) {
    const auto [in, up] = read(at, count);
    for (std::int64_t i = 0; i < count; ++i)
      out[i] += static_cast<double>(up[i] * (in[i] - mean[i]));
  });
  for (std::int64_t c = 0; c < last - first; ++c) sums[c].g_centred = totals[c];
}

// dx = scale · (g - offset - (x - mean) · slope)
template <class S, class P>
void write_gradient(const Extent& e, PieceReader<S, P>& read, S* dx, std::int64_t first,
                    std::int64_t last, const P& mean, const P& scale, const P& offset,
                    const P& slope) {
  rows::TileWriter<S> write;
  for_pieces(e, first, last, [&](std::int64_t at, std::int64_t count) {
    const auto [in, up] = read(at, count);
    Compute<S>* out = write.begin(dx + at);
#pragma GCC ivdep  // dx may be x or g itself
    for (std::int64_t i = 0; i < count; ++i)
      out[i] = scale[i] * (up[i] - offset[i] - (in[i] - mean[i]) * slope[i]);
    write.end(dx + at, count);
  });
}

// B is the bias's type.
template <class S, class B>
void run_backward(const KernelArgs& args, const Extent& e, const BatchNormGradAttributes& a) {
  using T = Compute<S>;
  const S *x = args.in<S>(0), *g = args.in<S>(1);
  const T *means = args.in<T>(2), *vars = args.in<T>(3);
  const S* weight = a.weight ? args.in<S>(4) : nullptr;
  const B* bias = a.bias ? args.in<B>(a.bias_input()) : nullptr;
  const Relu relu{a.relu};
  S *dx = args.out<S>(0), *dweight = args.out<S>(1), *dbias = args.out<S>(2);
  for_blocks(e, [&](std::int64_t first, std::int64_t last) {
    Sums sums[block_columns];
    const auto rstd = [&](std::int64_t c) { return reciprocal_deviation(vars[c], a.eps); };
    const auto mean = [&](std::int64_t c) { return means[c]; };
    const auto scale = [&](std::int64_t c) {
      return rstd(c) * (weight ? static_cast<T>(weight[c]) : T(1));
    };
    const auto shift = [&](std::int64_t c) {
      return bias ? static_cast<T>(static_cast<S>(bias[c])) : T(0);
    };
    const auto offset = [&](std::int64_t c) {
      return static_cast<T>(sums[c - first].g / e.per_channel());
    };
    const auto slope = [&](std::int64_t c) {
      const double r = static_cast<double>(rstd(c));
      return static_cast<T>(sums[c - first].g_centred / e.per_channel() * r * r);
    };
    if (e.long_runs()) {
      const Same<T> centre{mean(first)}, factor{scale(first)};
      PieceReader<S, Same<T>> read(x, g, centre, factor, {shift(first)}, relu);
      sums[0] = sums_of_runs(e, read, first, means[first]);
      write_gradient(e, read, dx, first, last, centre, factor, {offset(first)}, {slope(first)});
    } else {
      const auto centre = spread<T>(e, first, last, mean),
                 factor = spread<T>(e, first, last, scale);
      PieceReader<S, Columns<T>> read(x, g, centre, factor, spread<T>(e, first, last, shift), relu);
      sums_of_columns(e, read, first, last, centre, sums);
      write_gradient(e, read, dx, first, last, centre, factor, spread<T>(e, first, last, offset),
                     spread<T>(e, first, last, slope));
    }
    for (std::int64_t c = first; c < last; ++c) {
      const Sums& own = sums[c - first];
      dweight[c] = static_cast<S>(static_cast<T>(own.g_centred * static_cast<double>(rstd(c))));
      dbias[c] = static_cast<S>(static_cast<T>(own.g));
    }
  });
}

}  // namespace

Kernel bind_batch_norm_cpu(const KernelRequest& request, const BatchNormAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    return Kernel{[e = Extent(request.out().shape(), a.layout), a](const KernelArgs& args) {
      run_forward<S>(args, e, a);
    }};
  });
}

Kernel bind_batch_norm_grad_cpu(const KernelRequest& request, const BatchNormGradAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const bool wide = a.bias && request.in(a.bias_input()).dtype() != request.out().dtype();
    return Kernel{[e = Extent(request.out().shape(), a.layout), a, wide](const KernelArgs& args) {
      if (wide)
        run_backward<S, Compute<S>>(args, e, a);
      else
        run_backward<S, S>(args, e, a);
    }};
  });
}

}  // namespace ebb
