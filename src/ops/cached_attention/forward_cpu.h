// The kernel of attention over a cache, for caches of different kinds.
//
// A worker takes a few tokens of one key head, with all query heads that read it, and walks over
// the keys in tiles: each tile is read once for all of them. For a single token this is a matrix
// times a vector, so vectors run along the head size.
#pragma once

#include <algorithm>
#include <limits>

#include "core/parallel.h"
#include "ops/attention/simd.h"
#include "ops/attention/tiles.h"
#include "ops/cached_attention/cached_attention.h"
#include "ops/dispatch.h"

namespace ebb {

// The sum of a vector's elements, by halves.
template <class C>
C lane_total(const simd::Vector<C>& v) {
  constexpr int width = simd::Simd<C>::width;
  C parts[width];
  simd::store(parts, v);
  for (int half = width / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) parts[i] += parts[i + half];
  return parts[0];
}

// `Cache` reads the rows of one cache: Cache(args, operand) with the number of the cache's first
// operand, then rows(first, count, size, padded, buffer), which gives `count` rows of `size`
// elements from row `first` on in the type that the kernel computes in, `padded` elements apart
// with zeros behind the last: its own memory, or `buffer` filled.
template <class T, class Cache>
class CachedForward {
  using C = Compute<T>;
  using V = simd::Vector<C>;
  static constexpr int width = simd::Simd<C>::width;
  static constexpr C nothing = -std::numeric_limits<C>::infinity();
  static constexpr std::int64_t tile_keys = 64, block_tokens = 4;

 public:
  CachedForward(const CachedAttentionProblem& problem, int workers)
      : p_(problem),
        workers_(workers),
        size_(simd::padded<C>(p_.size)),
        value_size_(simd::padded<C>(p_.value_size)),
        queries_(std::min(block_tokens, p_.tokens) * p_.group) {
    query_at_ = scratch_.add<C>(queries_ * size_);
    result_at_ = scratch_.add<C>(queries_ * value_size_);
    score_at_ = scratch_.add<C>(tile_keys);
    running_at_ = scratch_.add<C>(2 * queries_);
    key_at_ = scratch_.add<C>(tile_keys * size_);
    value_at_ = scratch_.add<C>(tile_keys * value_size_);
  }
  Bytes workspace() const { return workers_ * scratch_.size(); }

  void operator()(const KernelArgs& args) const {
    const std::int64_t blocks = (p_.tokens + block_tokens - 1) / block_tokens;
    parallel_for_workers(p_.batches * p_.kv_heads * blocks, 1, workers_,
                         [&](int worker, std::int64_t begin, std::int64_t end) {
                           const Worker w(*this, args, worker);
                           for (std::int64_t unit = begin; unit < end; ++unit) {
                             const std::int64_t head = unit / blocks;
                             w.block(head / p_.kv_heads, head % p_.kv_heads,
                                     unit % blocks * block_tokens);
                           }
                         });
  }

 private:
  struct Worker {
    const CachedForward& f;
    const CachedAttentionProblem& p;
    const KernelArgs& args;
    Cache key_cache, value_cache;
    C *queries, *results, *scores, *highest, *sums, *keys, *values;

    Worker(const CachedForward& forward, const KernelArgs& a, int worker)
        : f(forward),
          p(forward.p_),
          args(a),
          key_cache(a, p.operands.keys),
          value_cache(a, p.operands.values) {
      const auto area = [&](Bytes offset) {
        return args.scratch<C>(worker * f.scratch_.size() + offset);
      };
      queries = area(f.query_at_), results = area(f.result_at_), scores = area(f.score_at_);
      highest = area(f.running_at_), sums = highest + f.queries_;
      keys = area(f.key_at_), values = area(f.value_at_);
    }

    void block(std::int64_t b, std::int64_t kv_head, std::int64_t first) const {
      const std::int64_t count = std::min(block_tokens, p.tokens - first), group = p.group;
      const std::int32_t* positions =
          args.in<std::int32_t>(p.operands.positions) + b * p.tokens + first;
      const std::int64_t row = args.in<std::int32_t>(p.operands.rows)[b];
      std::int64_t lowest = std::numeric_limits<std::int64_t>::max(), end = 0;
      bool inside = row >= 0 && row < p.cache_rows;
      for (std::int64_t t = 0; t < count; ++t) {
        if (positions[t] < 0) continue;
        if (!inside) {
          args.fault->out_of_range(b, row, p.cache_rows);
        } else if (positions[t] >= p.cache_tokens) {
          args.fault->out_of_range(b * p.tokens + first + t, positions[t], p.cache_tokens);
          inside = false;
        }
        const VisibleKeys seen = visible_keys(positions[t], p.window);
        lowest = std::min(lowest, seen.begin), end = std::max(end, seen.end);
      }
      if (!inside) end = 0;
      load_queries(b, kv_head, first, count);
      std::fill_n(results, count * group * f.value_size_, C(0));
      std::fill_n(highest, count * group, nothing);
      std::fill_n(sums, count * group, C(0));
      const std::int64_t line = (row * p.kv_heads + kv_head) * p.cache_tokens;
      for (std::int64_t j = end > 0 ? lowest / tile_keys * tile_keys : 0; j < end; j += tile_keys) {
        const std::int64_t most = std::min(tile_keys, end - j);
        const C* k = key_cache.rows(line + j, most, p.size, f.size_, keys);
        const C* v = value_cache.rows(line + j, most, p.value_size, f.value_size_, values);
        for (std::int64_t t = 0; t < count; ++t) {
          if (positions[t] < 0) continue;
          const VisibleKeys seen = visible_keys(positions[t], p.window);
          const std::int64_t from = std::max<std::int64_t>(seen.begin - j, 0),
                             to = std::min(seen.end - j, most);
          if (from >= to) continue;
          for (std::int64_t g = 0; g < group; ++g) tile(t * group + g, k, v, from, to);
        }
      }
      finish(b, kv_head, first, count);
    }

    void load_queries(std::int64_t b, std::int64_t kv_head, std::int64_t first,
                      std::int64_t count) const {
      const std::int64_t group = p.group;
      for (std::int64_t t = 0; t < count; ++t)
        for (std::int64_t g = 0; g < group; ++g) {
          C* to = queries + (t * group + g) * f.size_;
          attention::widen_row(args.in<T>(CachedAttention::q) + b * p.batch_stride +
                                   (kv_head * group + g) * p.head_stride +
                                   (first + t) * p.token_stride,
                               to, p.size);
          for (std::int64_t d = 0; d < p.size; ++d) to[d] *= static_cast<C>(p.scale);
          std::fill(to + p.size, to + f.size_, C(0));
        }
    }

    // Adds the keys [from, to) of a tile to one query's running softmax.
    void tile(std::int64_t query, const C* k, const C* v, std::int64_t from,
              std::int64_t to) const {
      const C* q = queries + query * f.size_;
      C* result = results + query * f.value_size_;
      std::fill_n(scores, tile_keys, nothing);
      C top = highest[query];
      for (std::int64_t j = from; j < to; ++j) {
        const C* key = k + j * f.size_;
        V sum = {};
        for (std::int64_t d = 0; d < f.size_; d += width)
          sum += simd::load(q + d) * simd::load(key + d);
        scores[j] = lane_total<C>(sum);
        top = std::max(top, scores[j]);
      }
      const C base = top == nothing ? C(0) : top;
      const V shrink = simd::exp_nonpositive(simd::spread(highest[query] - base));
      V added = {};
      for (std::int64_t j = 0; j < tile_keys; j += width) {
        const V weight = simd::exp_nonpositive(simd::load(scores + j) - base);
        added += weight;
        simd::store(scores + j, weight);
      }
      sums[query] = sums[query] * shrink[0] + lane_total<C>(added);
      highest[query] = top;
      for (std::int64_t d = 0; d < f.value_size_; d += width)
        simd::store<C>(result + d, simd::load(result + d) * shrink[0]);
      // Four keys at a time from multiples of four, so that the order does not depend on `from`.
      for (std::int64_t j = from / 4 * 4; j < to; j += 4) {
        const std::int64_t last = std::min(j + 4, to);
        for (std::int64_t d = 0; d < f.value_size_; d += width) {
          V sum = simd::load(result + d);
          for (std::int64_t i = std::max(j, from); i < last; ++i)
            sum += scores[i] * simd::load(v + i * f.value_size_ + d);
          simd::store<C>(result + d, sum);
        }
      }
    }

    void finish(std::int64_t b, std::int64_t kv_head, std::int64_t first,
                std::int64_t count) const {
      const std::int64_t group = p.group;
      for (std::int64_t t = 0; t < count; ++t)
        for (std::int64_t g = 0; g < group; ++g) {
          const std::int64_t query = t * group + g;
          C* result = results + query * f.value_size_;
          const C inverse = sums[query] == C(0) ? C(0) : C(1) / sums[query];
          for (std::int64_t d = 0; d < p.value_size; ++d) result[d] *= inverse;
          attention::narrow_row(
              result,
              args.out<T>() +
                  ((b * p.tokens + first + t) * p.heads + kv_head * group + g) * p.value_size,
              p.value_size);
        }
    }
  };

  CachedAttentionProblem p_;
  int workers_;
  std::int64_t size_, value_size_;  // padded to whole vectors
  std::int64_t queries_;            // of a block, at most
  attention::ScratchLayout scratch_;
  Bytes query_at_, result_at_, score_at_, running_at_, key_at_, value_at_;
};

}  // namespace ebb
