// What the kernels on tensor cores do to scores in registers. A warp has 16 rows of a matrix of
// scores: with g = lane / 4 and t = lane % 4, element c[n][2 · half + e] is in row g + 8 · half and
// column 8 n + 2 t + e.
//
// Exponentials are powers of two: scores are kept times log2(e).
#pragma once

#include "ops/attention/problem.cuh"

namespace ebb::attention {

inline constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;

// Over the four lanes that share a row.
template <class Join>
__device__ float join_row(float value, const Join& join) {
  value = join(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return join(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

// What a mask by key says of a lane's keys, a bit each. Asked for before the scores are there, so
// that nothing waits for it.
template <bool plain>
struct ShownKeys {
  std::uint32_t bits = ~0u;

  // Keys j + 8 n + 2 t + e, of columns: bit 2 n + e.
  template <class S>
  __device__ static ShownKeys of_columns(const ScoreRules<S, plain>& rules, int j) {
    if (!rules.by_key()) return {};
    const int t = static_cast<int>(threadIdx.x) % 4;
    ShownKeys shown{0};
#pragma unroll
    for (int k = 0; k < 16; ++k)
      shown.bits |= (rules.shows(j + 8 * (k / 2) + 2 * t + k % 2) ? 1u : 0u) << k;
    return shown;
  }
  // Keys j + g + 8 · half, of rows: bit `half`.
  template <class S>
  __device__ static ShownKeys of_rows(const ScoreRules<S, plain>& rules, int j) {
    if (!rules.by_key()) return {};
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
    return {(rules.shows(j + g) ? 1u : 0u) | (rules.shows(j + g + 8) ? 2u : 0u)};
  }
  __device__ bool operator()(int bit) const { return plain || (bits >> bit & 1u) != 0; }
};

// Scores become -inf where a query does not see a key, and get what a mask adds. query(n, e),
// key(n, e) and shown(n, e) tell what c[n][e] is the score of and what a mask by key says of it.
// Returns what the scores must be multiplied by afterwards: the scale and log2(e), unless that is
// done.
template <class S, bool plain, class Query, class Key, class Shown>
__device__ float follow_rules(const ScoreRules<S, plain>& rules, float (&c)[8][4],
                              const Query& query, const Key& key, const Shown& shown) {
  const CudaProblem& p = rules.p;
  const auto hide = [&] {
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = query(n, e), j = key(n, e);
        const bool seen = shown(n, e) && j < p.keys && !(p.causal && j > i);
        c[n][e] = seen ? c[n][e] : -cuda::infinity<float>();
      }
    return static_cast<float>(p.scale) * log2_e;
  };
  if constexpr (plain) {
    return hide();
  } else {
    if (rules.by_key()) return hide();
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        c[n][e] =
            rules.masked(c[n][e] * static_cast<float>(p.scale), query(n, e), key(n, e)) * log2_e;
    return 1.0f;
  }
}

// Which of a lane's weights c[count][4] dropout keeps, and by what they are multiplied.
template <bool plain, int count>
struct Kept {
  static_assert(count % 2 == 0 && count <= 8);
  std::uint32_t bits[4] = {};  // [2 · (n % 2) + e % 2], bit 4 · (n / 2 · 2 + e / 2)
  float keep = 1.0f;

  __device__ float operator()(int n, int e, float value) const {
    if constexpr (plain) return value;
    return bits[2 * (n % 2) + e % 2] >> (4 * (n / 2 * 2 + e / 2)) & 1u ? value * keep : 0.0f;
  }
  // Rows are queries, and the first is i; columns are keys from j on, a multiple of 8. A counter
  // gives four keys, those of lanes t and t ^ 1. Even lanes draw for even n, odd ones for odd n,
  // and they swap.
  template <class S>
  __device__ static Kept of_rows(const ScoreRules<S, plain>& rules, int i, int j) {
    Kept kept;
    if (!rules.drops()) {
      kept.all();
      return kept;
    }
    kept.keep = rules.keep;
    const int lane = static_cast<int>(threadIdx.x) % 32, t = lane % 4, row = i + lane / 4;
    if (!rules.by_fours()) {
      kept.one_by_one(
          rules, [&](int, int e) { return row + e / 2 * 8; },
          [&](int n, int e) { return j + 8 * n + 2 * t + e % 2; });
      return kept;
    }
    const bool odd = t % 2 != 0;
    std::uint32_t drawn = 0;
#pragma unroll
    for (int d = 0; d < count; ++d)
      drawn |= rules.four(row + d % 2 * 8, j + 8 * (d / 2 * 2 + (odd ? 1 : 0)) + t / 2 * 4)
               << (4 * d);
    const std::uint32_t got = __shfl_xor_sync(0xffffffffu, drawn, 1);
    const std::uint32_t even_n = (odd ? got : drawn) >> (odd ? 2 : 0),
                        odd_n = (odd ? drawn : got) >> (odd ? 2 : 0);
    kept.bits[0] = even_n, kept.bits[1] = even_n >> 1;
    kept.bits[2] = odd_n, kept.bits[3] = odd_n >> 1;
    return kept;
  }
  // Rows are keys, and the first is j, a multiple of 8; columns are queries from i on. A counter
  // gives the keys of four lanes, which are 4 apart. Each draws for one of the four queries that a
  // lane has in columns n and n + 1.
  template <class S>
  __device__ static Kept of_columns(const ScoreRules<S, plain>& rules, int i, int j) {
    Kept kept;
    if (!rules.drops()) {
      kept.all();
      return kept;
    }
    kept.keep = rules.keep;
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    if (!rules.by_fours()) {
      kept.one_by_one(
          rules, [&](int n, int e) { return i + 8 * n + 2 * t + e % 2; },
          [&](int, int e) { return j + g + e / 2 * 8; });
      return kept;
    }
    const int own = g % 4;
    std::uint32_t drawn = 0;
#pragma unroll
    for (int d = 0; d < count; ++d)
      drawn |= rules.four(i + 8 * (d / 2 * 2 + own / 2) + 2 * t + own % 2, j + g - own + d % 2 * 8)
               << (4 * d);
#pragma unroll
    for (int k = 0; k < 4; ++k)
      kept.bits[k] = __shfl_sync(0xffffffffu, drawn, (lane & ~12) | k << 2) >> own;
    return kept;
  }

 private:
  __device__ void all() {
#pragma unroll
    for (int k = 0; k < 4; ++k) bits[k] = ~0u;
  }
  template <class S, class Query, class Key>
  __device__ void one_by_one(const ScoreRules<S, plain>& rules, const Query& query,
                             const Key& key) {
#pragma unroll
    for (int n = 0; n < count; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (rules.factor(query(n, e), key(n, e)) != 0.0f)
          bits[2 * (n % 2) + e % 2] |= 1u << (4 * (n / 2 * 2 + e / 2));
  }
};

// The logsumexp times log2(e), for backward; +inf, which makes every weight zero, for a query
// without keys.
__device__ inline float saved_base(float logsumexp) {
  return logsumexp == -cuda::infinity<float>() ? cuda::infinity<float>() : logsumexp * log2_e;
}

}  // namespace ebb::attention
