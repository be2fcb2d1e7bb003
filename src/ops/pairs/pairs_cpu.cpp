// Two ways to compute products. With few rows of x (forward only), the weight's kept values are
// spread over a register and used at once, so that only 9/16 of a dense weight's bytes are read
// from memory. Otherwise tiles of the weight are unpacked (tiled_linear.h). The choice depends on
// shapes only, so the number of threads changes no bit.
#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "core/parallel.h"
#include "ops/dispatch.h"
#include "ops/matmul/gemm.h"
#include "ops/pairs/lanes.h"
#include "ops/pairs/pairs.h"
#include "ops/pointwise/convert.h"
#include "ops/tiled_linear.h"
#include "ops/workspace_areas.h"

namespace ebb {
namespace {

constexpr std::int64_t few_rows = 8;              // rows of x that read a weight directly
constexpr std::int64_t elements_at_once = 16384;  // for one thread
// Elements of a tile of a weight. Tiles have whole rows, so that each product has large factors.
constexpr std::int64_t tile_elements = std::int64_t{1} << 22;

std::int64_t tile_rows(std::int64_t columns) {
  return std::max<std::int64_t>(16, tile_elements / std::max<std::int64_t>(columns, 1));
}

std::int64_t rows_at_once(std::int64_t columns) {
  return std::max<std::int64_t>(1, elements_at_once / std::max<std::int64_t>(columns, 1));
}

template <class Use>
void each_row(std::int64_t rows, std::int64_t columns, const Use& use) {
  parallel_for(rows, rows_at_once(columns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) use(r);
  });
}

// Finds which two of four values stay.
template <class T>
unsigned largest_two(const T* four) {
  float size[4];
  for (int j = 0; j < 4; ++j) {
    const auto x = std::abs(static_cast<Compute<T>>(four[j]));
    size[j] = x != x ? HUGE_VALF : static_cast<float>(x);
  }
  int first = 0, second = -1;
  for (int j = 1; j < 4; ++j)
    if (size[j] > size[first])
      second = first, first = j;
    else if (second < 0 || size[j] > size[second])
      second = j;
  return 1u << first | 1u << second;
}

struct Sizes {
  std::int64_t rows, columns, bytes;  // of the matrix; of a row's positions
  explicit Sizes(const Shape& matrix)
      : rows(matrix[0]), columns(matrix[1]), bytes((matrix[1] + 7) / 8) {}
};

// --- Few rows ---

// A row of the weight, and the places of its products: one result for each row of x.
template <class T>
struct WeightRow {
  const T* values;
  const std::uint8_t* positions;
  float* out;
};

// The products of `wide` rows of the weight with `count` rows of x, register by register or column
// by column. Several rows of the weight share the elements read of x. The order of a result's sum
// depends on neither number.
template <int wide, int count, class T>
void dots(const std::array<WeightRow<T>, wide>& w, const float* x, std::int64_t columns,
          std::int64_t out_stride) {
  float totals[wide][count] = {};
  std::int64_t i = 0;
#if defined(__AVX512F__)
  if constexpr (has_registers<T>) {
    simd::Floats sums[wide][count] = {};
    for (; i + 16 <= columns; i += 16) {
      simd::Floats weights[wide];
      for (std::size_t n = 0; n < wide; ++n)
        weights[n] = sixteen_of_pairs(w[n].values, w[n].positions, i / 16);
      for (int m = 0; m < count; ++m) {
        const simd::Floats own = simd::load(x + m * columns + i);
        for (int n = 0; n < wide; ++n) sums[n][m] += weights[n] * own;
      }
    }
    for (int n = 0; n < wide; ++n)
      for (int m = 0; m < count; ++m)
        for (int lane = 0; lane < simd::lanes; ++lane) totals[n][m] += sums[n][m][lane];
  }
#endif
  for (; i < columns; i += 4)
    for (std::size_t n = 0; n < wide; ++n) {
      const auto& sources = sources_of(w[n].positions, i / 4);
      const float pair[3] = {static_cast<float>(w[n].values[i / 2]),
                             static_cast<float>(w[n].values[i / 2 + 1]), 0.0f};
      for (std::size_t j = 0; j < 4; ++j)
        for (int m = 0; m < count; ++m)
          totals[n][m] += pair[sources[j]] * x[m * columns + i + static_cast<std::int64_t>(j)];
    }
  for (std::size_t n = 0; n < wide; ++n)
    for (int m = 0; m < count; ++m) w[n].out[m * out_stride] = totals[n][m];
}

template <class S>
class Direct {
 public:
  Direct(const Sizes& w, std::int64_t rows) : w_(w), rows_(rows) {
    if (std::is_same_v<S, float>) return;
    x_at_ = areas_.add<float>(rows * w.columns), out_at_ = areas_.add<float>(rows * w.rows);
  }
  Bytes workspace() const { return areas_.total(); }

  void operator()(const KernelArgs& args) const {
    const S* values = args.in<S>(1);
    const auto* positions = args.in<std::uint8_t>(2);
    const float* x = nullptr;
    float* out = nullptr;
    if constexpr (std::is_same_v<S, float>) {
      x = args.in<float>(0), out = args.out<float>();
    } else {
      widen(args.in<S>(0), args.scratch<float>(x_at_), rows_ * w_.columns);
      x = args.scratch<float>(x_at_), out = args.scratch<float>(out_at_);
    }
    const auto row = [&](std::int64_t n) {
      return WeightRow<S>{values + n * (w_.columns / 2), positions + n * w_.bytes, out + n};
    };
    parallel_for((w_.rows + 1) / 2, rows_at_once(2 * w_.columns),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t n = 2 * begin; n < 2 * end; n += 2)
                     if (n + 1 < w_.rows)
                       products<2>({row(n), row(n + 1)}, x);
                     else
                       products<1>({row(n)}, x);
                 });
    if constexpr (!std::is_same_v<S, float>) narrow(out, args.out<S>(), rows_ * w_.rows);
  }

 private:
  // Multiplies with all rows of x, a few at a time.
  template <int wide>
  void products(std::array<WeightRow<S>, wide> w, const float* x) const {
    const auto some = [&]<int count>(std::integral_constant<int, count>) {
      dots<wide, count>(w, x, w_.columns, w_.rows);
      x += count * w_.columns;
      for (WeightRow<S>& row : w) row.out += count * w_.rows;
    };
    std::int64_t left = rows_;
    for (; left >= 4; left -= 4) some(std::integral_constant<int, 4>{});
    for (; left >= 2; left -= 2) some(std::integral_constant<int, 2>{});
    for (; left >= 1; left -= 1) some(std::integral_constant<int, 1>{});
  }

  Sizes w_;
  std::int64_t rows_;
  WorkspaceAreas areas_;
  Bytes x_at_, out_at_;
};

}  // namespace

Kernel bind_choose_pairs_cpu(const KernelRequest& request, const NoAttributes&) {
  return dispatch_floating(request, request.in(0).dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{[w = Sizes(request.in(0).shape())](const KernelArgs& args) {
      each_row(w.rows, w.columns, [&](std::int64_t r) {
        const T* from = args.in<T>(0) + r * w.columns;
        std::uint8_t* to = args.out<std::uint8_t>() + r * w.bytes;
        std::fill_n(to, w.bytes, std::uint8_t{0});
        for (std::int64_t i = 0; i < w.columns; i += 4)
          to[i / 8] = static_cast<std::uint8_t>(to[i / 8] | largest_two(from + i) << (i % 8));
      });
    }};
  });
}

Kernel bind_take_pairs_cpu(const KernelRequest& request, const NoAttributes&) {
  return dispatch_size(request.in(0).dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{[w = Sizes(request.in(0).shape())](const KernelArgs& args) {
      each_row(w.rows, w.columns, [&](std::int64_t r) {
        take_row(args.in<T>(0) + r * w.columns, args.in<std::uint8_t>(1) + r * w.bytes, w.columns,
                 args.out<T>() + r * (w.columns / 2));
      });
    }};
  });
}

Kernel bind_spread_pairs_cpu(const KernelRequest& request, const NoAttributes&) {
  return dispatch_floating(request, request.in(0).dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{[w = Sizes(request.out().shape())](const KernelArgs& args) {
      each_row(w.rows, w.columns, [&](std::int64_t r) {
        spread_row(args.in<T>(0) + r * (w.columns / 2), args.in<std::uint8_t>(1) + r * w.bytes, 0,
                   w.columns, args.out<T>() + r * w.columns);
      });
    }};
  });
}

Kernel bind_pair_linear_cpu(const KernelRequest& request, const PairLinearAttributes& a) {
  const std::int64_t rows = request.in(0).shape()[0], inner = request.in(0).shape()[1],
                     outer = request.out().shape()[1];
  const Shape& values = request.in(1).shape();
  const Sizes w(Shape{values[0], 2 * values[1]});
  require_gemm_sizes(request.op.name(), MatrixLayout::plain(rows, inner),
                     MatrixLayout::plain(inner, outer), outer);
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<S, double>)
      if (rows <= few_rows && !a.back) {
        const Direct<S> direct(w, rows);
        return Kernel{direct, direct.workspace()};
      }
    const TiledLinear<S> tiled({.back = a.back,
                                .rows = rows,
                                .inner = inner,
                                .outer = outer,
                                .tile_rows = tile_rows(w.columns),
                                .tile_columns = w.columns});
    return Kernel{[tiled, w](const KernelArgs& args) {
                    tiled(args, [&](std::int64_t row, std::int64_t count, std::int64_t column,
                                    std::int64_t columns, Compute<S>* to) {
                      each_row(count, columns, [&](std::int64_t r) {
                        spread_row(args.in<S>(1) + (row + r) * (w.columns / 2),
                                   args.in<std::uint8_t>(2) + (row + r) * w.bytes, column, columns,
                                   to + r * columns);
                      });
                    });
                  },
                  tiled.workspace()};
  });
}

}  // namespace ebb
