// Products in two ways. With few rows, the weight's kept values are spread over a register and used
// at once (forward only): a weight of 9/16 of the bytes is read from memory. Otherwise tiles of the
// weight are spread into the workspace and multiplied by BLAS. Which one, and the tiles, depend on
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
#include "ops/workspace_areas.h"

namespace ebb {
namespace {

constexpr std::int64_t few_rows = 8;              // that read a weight directly
constexpr std::int64_t elements_at_once = 16384;  // for one thread
// Of a tile of a weight: whole rows, so that a product of large factors is made at a time.
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

// Of which two of four values stay.
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

// A row of the weight, and where its products go: one result for each row of x.
template <class T>
struct WeightRow {
  const T* values;
  const std::uint8_t* positions;
  float* out;
};

// The products of `wide` rows of the weight with `count` rows of x: register by register, or column
// by column. Several rows of the weight share what is read of x. Each result is summed in the same
// order whatever the two numbers are.
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
  // With all rows of x, some at a time.
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

// --- Tiles ---

// S is the type of x and the result, C the one that is computed in.
template <class S, class C = Compute<S>>
class Tiled {
 public:
  Tiled(const Sizes& w, bool back, std::int64_t rows)
      : w_(w),
        back_(back),
        rows_(rows),
        inner_(back ? w.rows : w.columns),
        outer_(back ? w.columns : w.rows),
        width_(back ? outer_ : std::min(outer_, tile_rows(w.columns))),
        depth_(back ? std::min(inner_, tile_rows(w.columns)) : inner_),
        height_(same ? rows : std::min<std::int64_t>(rows, most_height)) {
    weight_at_ = areas_.add<C>(width_ * depth_);
    if (same) return;
    x_at_ = areas_.add<C>(height_ * depth_);
    out_at_ = areas_.add<C>(height_ * width_);
  }
  Bytes workspace() const { return areas_.total(); }

  void operator()(const KernelArgs& args) const {
    if (rows_ == 0 || outer_ == 0) return;
    if (inner_ == 0) {
      std::fill_n(args.out<S>(), rows_ * outer_, S(0.0f));
      return;
    }
    for (std::int64_t row = 0; row < rows_; row += height_)
      for (std::int64_t column = 0; column < outer_; column += width_)
        tile(args, row, std::min(height_, rows_ - row), column, std::min(width_, outer_ - column));
  }

 private:
  static constexpr bool same = std::is_same_v<S, C>;
  static constexpr std::int64_t most_height = 512;  // of tiles that are widened

  // Rows [row, row + rows), columns [column, column + columns) of the weight.
  void spread(const KernelArgs& args, std::int64_t row, std::int64_t rows, std::int64_t column,
              std::int64_t columns, C* to) const {
    const S* values = args.in<S>(1);
    const auto* positions = args.in<std::uint8_t>(2);
    each_row(rows, columns, [&](std::int64_t r) {
      spread_row(values + (row + r) * (w_.columns / 2), positions + (row + r) * w_.bytes, column,
                 columns, to + r * columns);
    });
  }

  void tile(const KernelArgs& args, std::int64_t row, std::int64_t rows, std::int64_t column,
            std::int64_t columns) const {
    C* weight = args.scratch<C>(weight_at_);
    S* to = args.out<S>() + row * outer_ + column;
    for (std::int64_t k = 0; k < inner_; k += depth_) {
      const std::int64_t depth = std::min(depth_, inner_ - k);
      if (back_)
        spread(args, k, depth, column, columns, weight);
      else
        spread(args, column, columns, k, depth, weight);
      const MatrixLayout b =
          back_ ? MatrixLayout::plain(depth, columns) : MatrixLayout::swapped(depth, columns);
      const C beta = k == 0 ? C(0) : C(1);
      const S* from = args.in<S>(0) + row * inner_ + k;
      if constexpr (same) {
        gemm({rows, depth, inner_, 1}, from, b, weight, beta, to, outer_);
      } else {
        C* x = args.scratch<C>(x_at_);
        each_row(rows, depth,
                 [&](std::int64_t r) { widen(from + r * inner_, x + r * depth, depth); });
        gemm(MatrixLayout::plain(rows, depth), x, b, weight, beta, args.scratch<C>(out_at_),
             columns);
      }
    }
    if constexpr (!same) {
      const C* out = args.scratch<C>(out_at_);
      each_row(rows, columns,
               [&](std::int64_t r) { narrow(out + r * columns, to + r * outer_, columns); });
    }
  }

  Sizes w_;
  bool back_;
  std::int64_t rows_, inner_, outer_, width_, depth_, height_;
  WorkspaceAreas areas_;
  Bytes weight_at_, x_at_, out_at_;
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
    const Tiled<S> tiled(w, a.back, rows);
    return Kernel{tiled, tiled.workspace()};
  });
}

}  // namespace ebb
