// Shared by forward and backward: the bound problem, and loading tiles.
//
// A tile of scores is stored with keys as rows and queries as the lanes of vectors: scores[j][i].
// Then maxima and sums over keys need no cross-lane operations, and keys and values are read in
// their own layout.
#pragma once

#include <algorithm>
#include <limits>

#include "ebb/storage.h"
#include "ops/attention/attention.h"
#include "ops/attention/dropout_cpu.h"
#include "ops/attention/simd.h"
#include "ops/dispatch.h"
#include "ops/pointwise/convert.h"

namespace ebb::attention {

template <class C>
inline constexpr int lanes = 2 * simd::Simd<C>::width;  // queries of a tile
inline constexpr int tile_keys = 128;                   // keys of a tile, at most

// A (B, H, T, D) tensor by its strides; the last is 1.
struct Heads {
  std::int64_t batch = 0, head = 0, row = 0;

  Heads() = default;
  explicit Heads(const Arg& arg)
      : batch(arg.strides[0]), head(arg.strides[1]), row(arg.strides[2]) {}
  std::int64_t at(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return b * batch + h * head + t * row;
  }
};

struct Problem {
  std::int64_t batches, heads, kv_heads, queries, keys, size, value_size;
  Heads q, k, v;
  bool causal, masked = false, boolean_mask = false, first_keys = false;
  double scale, dropout;
  RandomKey key;
  Strides mask;  // 0 along axes of size 1

  Problem(const KernelRequest& request, const AttentionAttributes& a, int mask_input)
      : q(request.in(0)),
        k(request.in(1)),
        v(request.in(2)),
        causal(a.causal),
        scale(a.scale),
        dropout(a.dropout),
        key(a.key) {
    const Shape &qs = request.in(0).shape(), &vs = request.in(2).shape();
    batches = qs[0], heads = qs[1], kv_heads = vs[1], queries = qs[2], keys = vs[2];
    size = qs[3], value_size = vs[3];
    if (static_cast<int>(request.inputs.size()) <= mask_input) return;
    const Arg& arg = request.in(mask_input);
    masked = true;
    boolean_mask = arg.dtype() == b8;
    first_keys = arg.dtype() == i32;
    for (int i = 0; i < 4; ++i) mask.push_back(arg.shape()[i] == 1 ? 0 : arg.strides[i]);
  }

  std::int64_t group() const { return kv_heads > 0 ? heads / kv_heads : 0; }

  // Keys that some query before `end` sees.
  std::int64_t visible(std::int64_t end) const { return causal ? std::min(keys, end) : keys; }
  // The first key of query i, for a mask of first keys.
  std::int64_t first_key(const std::byte* first, std::int64_t b, std::int64_t i) const {
    return reinterpret_cast<const std::int32_t*>(first)[b * mask[0] + i * mask[2]];
  }
  // The first tile of keys that one of `count` queries sees in part.
  std::int64_t first_tile(const std::byte* first, std::int64_t b, std::int64_t query,
                          std::int64_t count) const;
};

inline std::int64_t Problem::first_tile(const std::byte* first, std::int64_t b, std::int64_t query,
                                        std::int64_t count) const {
  if (!first_keys || count <= 0) return 0;
  std::int64_t least = keys;
  for (std::int64_t i = query; i < query + count; ++i)
    least = std::min(least, first_key(first, b, i));
  return std::max<std::int64_t>(least, 0) / tile_keys * tile_keys;
}

// Places of scratch areas, one after the other, each aligned for vectors.
class ScratchLayout {
 public:
  template <class C>
  Bytes add(std::int64_t elements) {
    const Bytes at = size_;
    size_ += round_up({elements * static_cast<std::int64_t>(sizeof(C))}, buffer_alignment);
    return at;
  }
  Bytes size() const { return size_; }

 private:
  Bytes size_;
};

template <class T, class C>
inline void widen_row(const T* from, C* to, std::int64_t count) {
  if constexpr (std::is_same_v<T, C>)
    std::copy_n(from, count, to);
  else
    widen(from, to, count);
}

template <class T, class C>
inline void narrow_row(const C* from, T* to, std::int64_t count) {
  if constexpr (std::is_same_v<T, C>)
    std::copy_n(from, count, to);
  else
    narrow(from, to, count);
}

// Up to `lanes` rows of queries (or of gradients), `stride` apart, times `factor`, into a tile with
// padded columns. Missing rows and columns are zero.
template <class T, class C>
void load_rows(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t columns,
               C factor, C* to) {
  const std::int64_t width = simd::padded<C>(columns);
  for (std::int64_t i = 0; i < rows; ++i) {
    C* row = to + i * width;
    widen_row(from + i * stride, row, columns);
    for (std::int64_t d = 0; d < columns; ++d) row[d] *= factor;
    std::fill(row + columns, row + width, C(0));
  }
  std::fill(to + rows * width, to + lanes<C> * width, C(0));
}

// Rows of keys or values: in place if the kernel computes in their type, otherwise widened into
// `buffer`.
template <class T, class C>
simd::Factor<C> load_keys(const T* from, std::int64_t stride, std::int64_t rows,
                          std::int64_t columns, C* buffer) {
  if constexpr (std::is_same_v<T, C>) {
    return {from, stride};
  } else {
    for (std::int64_t j = 0; j < rows; ++j) widen(from + j * stride, buffer + j * columns, columns);
    return {buffer, columns};
  }
}

// One tile's place in the problem.
struct Place {
  std::int64_t batch, head, query, queries, key, keys;
};

// Sets -inf where a query does not see a key, and adds a floating mask.
template <class T, class C>
void apply_masks(const Problem& p, const Place& at, const std::byte* mask, C* scores) {
  constexpr C hidden = -std::numeric_limits<C>::infinity();
  constexpr int width = lanes<C>;
  if (p.first_keys) {
    for (std::int64_t i = 0; i < at.queries; ++i) {
      const std::int64_t hidden_keys =
          std::min(at.keys, p.first_key(mask, at.batch, at.query + i) - at.key);
      for (std::int64_t j = 0; j < hidden_keys; ++j) scores[j * width + i] = hidden;
    }
  } else if (p.masked) {
    const std::int64_t base =
        at.batch * p.mask[0] + at.head * p.mask[1] + at.query * p.mask[2] + at.key * p.mask[3];
    for (std::int64_t j = 0; j < at.keys; ++j) {
      C* row = scores + j * width;
      const std::int64_t first = base + j * p.mask[3];
      if (p.boolean_mask) {
        const auto* see = reinterpret_cast<const std::uint8_t*>(mask) + first;
        for (std::int64_t i = 0; i < at.queries; ++i)
          if (!see[i * p.mask[2]]) row[i] = hidden;
      } else {
        const T* more = reinterpret_cast<const T*>(mask) + first;
        for (std::int64_t i = 0; i < at.queries; ++i) row[i] += static_cast<C>(more[i * p.mask[2]]);
      }
    }
  }
  if (p.causal)
    for (std::int64_t j = std::max<std::int64_t>(0, at.query - at.key + 1); j < at.keys; ++j)
      std::fill_n(scores + j * width, std::min<std::int64_t>(width, at.key + j - at.query), hidden);
}

// The factors of dropout for a tile of scores, whose first key is the first of a block.
template <class C>
void dropout_factors(const Problem& p, const Philox& philox, const Place& at, C* factors) {
  constexpr std::int64_t edge = DropoutMask::edge, groups = DropoutMask::block_groups;
  constexpr std::int64_t step = std::min<std::int64_t>(groups, lanes<C>);  // queries at a time
  const DropoutMask mask(p.dropout, p.queries, p.keys);
  const C keep = static_cast<C>(mask.keep);
  for (std::int64_t j = 0; j < at.keys; j += edge) {
    KeptBlock kept{};
    for (std::int64_t i = 0; i < at.queries; i += step) {
      const std::int64_t query = at.query + i, within = query % edge;
      if (i == 0 || within == 0)
        kept = draw_block(mask, philox, at.batch * p.heads + at.head, query - within, at.key + j);
      const std::uint32_t* group = kept.data() + query % groups;
      for (std::int64_t n = 0; n < std::min(edge, at.keys - j); ++n) {
        const std::int64_t bit = within / groups * edge + n;
        C* to = factors + (j + n) * lanes<C> + i;
        for (std::int64_t r = 0; r < step; ++r) to[r] = (group[r] >> bit & 1u) != 0 ? keep : C(0);
      }
    }
  }
  for (std::int64_t j = 0; j < at.keys; ++j)
    std::fill(factors + j * lanes<C> + at.queries, factors + (j + 1) * lanes<C>, C(0));
}

}  // namespace ebb::attention
