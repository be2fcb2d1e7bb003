// Tiles of logits, and the products that compute them and their gradients.
//
// Products of half types are slow if the number of classes is not a multiple of a pack, such as
// 50257: then the last block of the weight is copied and padded with zeros.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "ops/cross_entropy/rows.cuh"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/matmul/gemm_cuda.h"
#include "ops/workspace_areas.h"

namespace ebb::cuda {

// Bytes of logits of a tile's rows with all classes, which one walk keeps from forward to backward.
// With fewer, products would have few rows.
inline constexpr Bytes kept_logits = 288_MiB;

// Bytes of logits of one tile in two walks, or more if x itself is large. Smaller tiles would mean
// small products, and more additions to the gradient of x.
inline constexpr Bytes tile_logits = 32_MiB;

// The tiling of the logits (rows, classes). It determines the order of all sums, so it depends only
// on shapes, never on available memory.
struct Problem {
  std::int64_t rows, features, classes;
  std::int64_t height = 0, block = 0;  // rows and classes of a tile
  std::int64_t lead = 0;               // elements from one row of logits to the next: whole packs
  bool pads = false;                   // the last block
  CrossEntropyAttributes loss;
  DType dtype, index;
  bool tf32;
  std::int64_t alignment = 16;  // bytes, of the inputs

  Problem(const KernelRequest& request, const LinearCrossEntropyAttributes& a)
      : rows(request.in(0).shape()[0]),
        features(request.in(0).shape()[1]),
        classes(request.in(1).shape()[0]),
        loss(a.loss),
        dtype(request.in(0).dtype()),
        index(index_dtype(request, 2)),
        tf32(request.target.tf32 && dtype == f32) {
    for (int i : {0, 1})
      if (const std::int64_t bytes = request.in(i).offset * size_of(dtype).count; bytes != 0)
        alignment = std::min(alignment, bytes & -bytes);
    pads = size_of(dtype).count == 2 && classes % 8 != 0;
    cut(a.chunk);
  }

  // Chooses the tiles; `chunk` rows each, unless it is 0.
  void cut(std::int64_t chunk) {
    constexpr std::int64_t fewest_rows = 64, fewest_classes = 1024;
    const std::int64_t size = size_of(dtype).count, row = ceil_div(classes, 8) * 8 * size;  // bytes
    const Bytes weight_sums = classes * features * size_of(f32),
                x_sums = rows * features * size_of(f32);
    const std::int64_t most_bytes = std::max(tile_logits.count, x_sums.count / 2);
    std::int64_t most_rows = chunk;
    if (chunk == 0) {
      most_rows = kept_logits.count / row;
      // With all rows in one tile, the weight's gradient needs no float accumulator.
      if (rows * row <= kept_logits.count + weight_sums.count) most_rows = rows;
      most_rows = std::min(most_rows, most_bytes / (std::min(classes, fewest_classes) * size));
      most_rows = std::max(most_rows, fewest_rows);
    }
    height = even_part(std::max<std::int64_t>(rows, 1), most_rows);
    std::int64_t most_classes = most_bytes / (height * size);
    // A block's gradient of the weight is summed in float too.
    if (height < rows)
      most_classes = std::min(most_classes, most_bytes / (features * size_of(f32).count));
    block = even_part(classes, std::max(fewest_classes, most_classes / 64 * 64));
    lead = ceil_div(block, 8) * 8;
  }

  // The size of nearly equal parts, as few as possible, none larger than `most`.
  static std::int64_t even_part(std::int64_t count, std::int64_t most) {
    const std::int64_t part = ceil_div(count, ceil_div(count, most));
    return std::min(count, most < 64 ? part : std::min(most, ceil_div(part, 64) * 64));
  }

  std::int64_t tiles() const { return ceil_div(rows, height); }
  std::int64_t blocks() const { return ceil_div(classes, block); }
  std::int64_t height_of(std::int64_t tile) const { return std::min(height, rows - tile * height); }
  std::int64_t width_of(std::int64_t b) const { return std::min(block, classes - b * block); }
  bool padded(std::int64_t b) const { return pads && b == blocks() - 1; }
  // Includes padding, which products need if classes are their inner or their last axis.
  std::int64_t whole_width(std::int64_t b) const {
    return padded(b) ? ceil_div(width_of(b), 8) * 8 : width_of(b);
  }
};

// The weight by blocks, of which the last may be a padded copy in the workspace.
template <class S>
class WeightBlocks {
 public:
  WeightBlocks(const Problem& p, const KernelArgs& args, Bytes copy_at)
      : p_(p), weight_(args.in<S>(1)), copy_(args.scratch<S>(copy_at)) {
    if (!p.pads) return;
    const std::int64_t b = p.blocks() - 1;
    const auto bytes = [&](std::int64_t width) {
      return static_cast<std::size_t>(width * p.features) * sizeof(S);
    };
    EBB_CUDA_CHECK(cudaMemcpyAsync(copy_, weight_ + b * p.block * p.features, bytes(p.width_of(b)),
                                   cudaMemcpyDeviceToDevice, stream_of(args)));
    EBB_CUDA_CHECK(cudaMemsetAsync(copy_ + p.width_of(b) * p.features, 0,
                                   bytes(p.whole_width(b) - p.width_of(b)), stream_of(args)));
  }
  static Bytes add_area(const Problem& p, WorkspaceAreas& areas) {
    return areas.add<S>(p.pads ? p.whole_width(p.blocks() - 1) * p.features : 0);
  }
  const S* operator[](std::int64_t b) const {
    return p_.padded(b) ? copy_ : weight_ + b * p_.block * p_.features;
  }

 private:
  const Problem& p_;
  const S* weight_;
  S* copy_;
};

// A product for each combination of a whole or last tile, a whole or last block, and overwriting or
// adding.
class GemmTable {
 public:
  template <class Spec>  // gives a GemmSpec for (height, block)
  GemmTable(const Target& target, const Problem& p, bool adds, const Spec& spec) : p_(p) {
    for (const std::int64_t tile : {std::int64_t{0}, p.tiles() - 1})
      for (const std::int64_t b : {std::int64_t{0}, p.blocks() - 1})
        for (const bool add : {false, true}) {
          if (add && !adds) {
            gemms_.push_back(gemms_.back());
            continue;
          }
          GemmSpec s = spec(p.height_of(tile), b);
          s.accumulate = add;
          s.tf32 = p.tf32;
          gemms_.emplace_back(target, s);
          workspace_ = std::max(workspace_, gemms_.back().workspace());
        }
  }
  Bytes workspace() const { return workspace_; }
  // Of all tiles; `adding`: whether a product adds to what the tiles or blocks before it gave. 0 if
  // one of them is not known.
  template <class Adding>
  double ms(const Adding& adding) const {
    double total = 0.0;
    for (std::int64_t tile = 0; tile < p_.tiles(); ++tile)
      for (std::int64_t b = 0; b < p_.blocks(); ++b) {
        const double own = at(tile, b, adding(tile, b)).ms();
        if (own == 0.0) return 0.0;
        total += own;
      }
    return total;
  }
  const Gemm& at(std::int64_t tile, std::int64_t b, bool add) const {
    const std::size_t last_tile = tile == p_.tiles() - 1, last_block = b == p_.blocks() - 1;
    return gemms_[4 * last_tile + 2 * last_block + add];
  }

 private:
  Problem p_;
  std::vector<Gemm> gemms_;
  Bytes workspace_;
};

// The time of all products of a loss's gradient; 0 if that of one is not known.
inline double products_ms(const GemmTable& logits, const GemmTable* to_x,
                          const GemmTable* to_weight) {
  double total = logits.ms([](auto, auto) { return false; });
  if (total == 0.0) return 0.0;
  for (const auto& [table, by_block] : {std::pair{to_x, true}, {to_weight, false}}) {
    if (!table) continue;
    const double own = table->ms(
        [by = by_block](std::int64_t tile, std::int64_t b) { return by ? b > 0 : tile > 0; });
    if (own == 0.0) return 0.0;
    total += own;
  }
  return total;
}

// Traffic of kernels that go over all logits `times` times.
inline Cost logit_traffic(const Problem& p, int times) {
  return {.moved = times * p.rows * p.classes * size_of(p.dtype)};
}

// Rows of x and of the weight begin at multiples of this many bytes, or of more.
inline std::int64_t row_alignment(const Problem& p) {
  const std::int64_t bytes = p.features * size_of(p.dtype).count;
  return std::min<std::int64_t>(p.alignment, bytes & -bytes);
}

inline GemmTable logit_products(const Target& target, const Problem& p) {
  return GemmTable(target, p, false, [&](std::int64_t height, std::int64_t b) {
    const std::int64_t width = p.whole_width(b);
    return GemmSpec{.a = MatrixLayout::plain(height, p.features),
                    .b = MatrixLayout::swapped(p.features, width),
                    .dtype = p.dtype,
                    .out = p.dtype,
                    .out_lead = p.lead,
                    .align_a = row_alignment(p),
                    .align_b = row_alignment(p)};
  });
}

// The gradient of logits by the weight: of the rows of x.
inline GemmTable products_to_x(const Target& target, const Problem& p, DType out) {
  return GemmTable(target, p, p.blocks() > 1, [&](std::int64_t height, std::int64_t b) {
    const std::int64_t width = p.whole_width(b);
    return GemmSpec{.a = {height, width, p.lead, 1},
                    .b = MatrixLayout::plain(width, p.features),
                    .dtype = p.dtype,
                    .out = out,
                    .out_lead = p.features,
                    .align_b = row_alignment(p),
                    .align_out = row_alignment(p)};
  });
}

// The gradient of logits, turned around, by x: of the rows of the weight, and of the padding where
// it goes to a place of its own.
inline GemmTable products_to_weight(const Target& target, const Problem& p, DType out) {
  return GemmTable(target, p, p.tiles() > 1, [&](std::int64_t height, std::int64_t b) {
    const std::int64_t width = out == p.dtype ? p.width_of(b) : p.whole_width(b);
    return GemmSpec{.a = {width, height, 1, p.lead},
                    .b = MatrixLayout::plain(height, p.features),
                    .dtype = p.dtype,
                    .out = out,
                    .out_lead = p.features,
                    .align_b = row_alignment(p),
                    .align_out = row_alignment(p)};
  });
}

template <class S>
__global__ void narrow_kernel(const Compute<S>* from, S* to, std::int64_t count) {
  for_items(count, [&](std::int64_t i) { to[i] = narrow<S>(from[i]); });
}

template <class S>
void narrow_all(const KernelArgs& args, const Compute<S>* from, S* to, std::int64_t count) {
  launch({args, "linear_cross_entropy_grad", item_grid(count), dim3(item_threads)},
         narrow_kernel<S>, from, to, count);
}

}  // namespace ebb::cuda
