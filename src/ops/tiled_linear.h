// x · Wᵀ, or x · W, for a weight that is stored in a packed form: tiles of it are unpacked into the
// workspace and multiplied as float32 or float64. Tiles depend on shapes only, so the number of
// threads changes no bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/parallel.h"
#include "ops/dispatch.h"
#include "ops/matmul/product.h"
#include "ops/pointwise/convert.h"
#include "ops/workspace_areas.h"

namespace ebb {

struct TiledLinearSizes {
  bool back = false;                             // x · W, the gradient in x
  std::int64_t rows = 0;                         // of x
  std::int64_t inner = 0, outer = 0;             // columns of x and of the result
  std::int64_t tile_rows = 0, tile_columns = 0;  // of the weight, at most
};

// S is the type of x and the result, C the one that is computed in. Where they differ, tiles of x
// are widened and tiles of the result narrowed.
template <class S, class C = Compute<S>>
class TiledLinear {
 public:
  explicit TiledLinear(const TiledLinearSizes& sizes)
      : s_(sizes),
        width_(std::min(s_.outer, s_.back ? s_.tile_columns : s_.tile_rows)),
        depth_(std::min(s_.inner, s_.back ? s_.tile_rows : s_.tile_columns)),
        height_(same ? s_.rows : std::min<std::int64_t>(s_.rows, most_height)),
        product_(height_, depth_, width_) {
    weight_at_ = areas_.add<C>(width_ * depth_);
    product_at_ = areas_.add(product_.workspace());
    if (same) return;
    x_at_ = areas_.add<C>(height_ * depth_);
    out_at_ = areas_.add<C>(height_ * width_);
  }
  Bytes workspace() const { return areas_.total(); }

  // x is the first input. unpack(row, rows, column, columns, to) writes that part of the weight to
  // `to`, row by row.
  template <class Unpack>
  void operator()(const KernelArgs& args, const Unpack& unpack) const {
    if (s_.rows == 0 || s_.outer == 0) return;
    if (s_.inner == 0) {
      std::fill_n(args.out<S>(), s_.rows * s_.outer, S(0.0f));
      return;
    }
    for (std::int64_t row = 0; row < s_.rows; row += height_)
      for (std::int64_t column = 0; column < s_.outer; column += width_)
        tile(args, unpack, row, std::min(height_, s_.rows - row), column,
             std::min(width_, s_.outer - column));
  }

 private:
  static constexpr bool same = std::is_same_v<S, C>;
  static constexpr std::int64_t most_height = 512;  // of tiles that are widened

  template <class Use>
  static void each_row(std::int64_t rows, std::int64_t columns, const Use& use) {
    parallel_for(rows, std::max<std::int64_t>(1, 16384 / columns),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t r = begin; r < end; ++r) use(r);
                 });
  }

  template <class Unpack>
  void tile(const KernelArgs& args, const Unpack& unpack, std::int64_t row, std::int64_t rows,
            std::int64_t column, std::int64_t columns) const {
    C* weight = args.scratch<C>(weight_at_);
    S* to = args.out<S>() + row * s_.outer + column;
    for (std::int64_t k = 0; k < s_.inner; k += depth_) {
      const std::int64_t depth = std::min(depth_, s_.inner - k);
      if (s_.back)
        unpack(k, depth, column, columns, weight);
      else
        unpack(column, columns, k, depth, weight);
      const MatrixLayout b =
          s_.back ? MatrixLayout::plain(depth, columns) : MatrixLayout::swapped(depth, columns);
      const auto multiply = [&](const MatrixLayout& a, const C* x, C* out, std::int64_t stride) {
        product_.sum({a, x, b, weight}, k == 0 ? Store::overwrite : Store::add, out, stride,
                     args.scratch<std::byte>(product_at_), threads());
      };
      const S* from = args.in<S>(0) + row * s_.inner + k;
      if constexpr (same) {
        multiply({rows, depth, s_.inner, 1}, from, to, s_.outer);
      } else {
        C* x = args.scratch<C>(x_at_);
        each_row(rows, depth,
                 [&](std::int64_t r) { widen(from + r * s_.inner, x + r * depth, depth); });
        multiply(MatrixLayout::plain(rows, depth), x, args.scratch<C>(out_at_), columns);
      }
    }
    if constexpr (!same) {
      const C* out = args.scratch<C>(out_at_);
      each_row(rows, columns,
               [&](std::int64_t r) { narrow(out + r * columns, to + r * s_.outer, columns); });
    }
  }

  TiledLinearSizes s_;
  std::int64_t width_, depth_, height_;
  MatrixProduct<C> product_;
  WorkspaceAreas areas_;
  Bytes weight_at_, product_at_, x_at_, out_at_;
};

}  // namespace ebb
