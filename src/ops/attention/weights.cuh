// Operations of the tensor-core kernels on scores in registers. A warp has 16 rows of a matrix of
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

// A padding mask for a lane's keys, one bit each. Loaded before the scores are ready, to hide its
// latency.
template <bool plain>
struct ShownKeys {
  std::uint32_t bits[2] = {~0u, ~0u};

  // For keys as columns: 64 keys from j on. Each lane loads two and shares them with the warp.
  template <class S>
  __device__ static ShownKeys of_columns(const ScoreRules<S, plain>& rules, int j) {
    ShownKeys shown;
    if (!rules.by_key()) return shown;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool low = rules.shows(j + lane), high = rules.shows(j + 32 + lane);
    shown.bits[0] = __ballot_sync(0xffffffffu, low) >> (2 * (lane % 4));
    shown.bits[1] = __ballot_sync(0xffffffffu, high) >> (2 * (lane % 4));
    return shown;
  }
  // Of key 8 n + 2 t + e.
  __device__ bool column(int n, int e) const {
    return plain || (bits[n / 4] >> (8 * (n % 4) + e) & 1u) != 0;
  }

  // Of rows: keys j + g + 8 · half.
  template <class S>
  __device__ static ShownKeys of_rows(const ScoreRules<S, plain>& rules, int j) {
    ShownKeys shown;
    if (!rules.by_key()) return shown;
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
    shown.bits[0] = (rules.shows(j + g) ? 1u : 0u) | (rules.shows(j + g + 8) ? 2u : 0u);
    return shown;
  }
  __device__ bool row(int half) const { return plain || (bits[0] >> half & 1u) != 0; }
};

// Sets scores to -inf where a query does not see a key, and adds a floating mask. query(n, e),
// key(n, e) and shown(n, e) give the query, the key and the padding mask of c[n][e]. Returns the
// remaining factor for the scores: the scale times log2(e), or 1 if already applied.
template <class S, bool plain, int count, class Query, class Key, class Shown>
__device__ float follow_rules(const ScoreRules<S, plain>& rules, float (&c)[count][4],
                              const Query& query, const Key& key, const Shown& shown) {
  const CudaProblem& p = rules.p;
  // A mask by key shows no key that does not exist.
  const auto hide = [&](auto causal) {
#pragma unroll
    for (int n = 0; n < count; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = query(n, e), j = key(n, e);
        const bool seen = (plain ? j < p.keys : shown(n, e)) && !(decltype(causal)::value && j > i);
        c[n][e] = seen ? c[n][e] : -cuda::infinity<float>();
      }
    return static_cast<float>(p.scale) * log2_e;
  };
  const auto hide_by_key = [&] {
    return p.causal ? hide(std::true_type{}) : hide(std::false_type{});
  };
  if constexpr (plain) {
    return hide_by_key();
  } else {
    if (rules.by_key()) return hide_by_key();
#pragma unroll
    for (int n = 0; n < count; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        c[n][e] =
            rules.masked(c[n][e] * static_cast<float>(p.scale), query(n, e), key(n, e)) * log2_e;
    return 1.0f;
  }
}

// Multiplies scores by the scale and log2(e), sets them to -inf where a query does not see a key,
// and adds a floating mask. `inside`: every query of the tile sees every key, as far as lengths,
// the causal mask and first keys go. query(n, e), key(n, e) and show(shown, n, e) give the query,
// the key and the padding mask of c[n][e].
template <class S, bool plain, int count, class Query, class Key, class Show>
__device__ void scale_scores(const ScoreRules<S, plain>& rules, bool inside,
                             const ShownKeys<plain>& shown, float (&c)[count][4],
                             const Query& query, const Key& key, const Show& show) {
  const CudaProblem& p = rules.p;
  const float scale = static_cast<float>(p.scale);
  const auto each = [&](const auto& changed) {
#pragma unroll
    for (int n = 0; n < count; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) c[n][e] = changed(n, e, c[n][e]);
  };
  if (inside && !rules.masks_all())
    each([&](int, int, float s) { return s * (scale * log2_e); });
  else if (rules.by_key())  // which shows no key that does not exist
    each([&](int n, int e, float s) {
      const bool seen = show(shown, n, e) && (inside || !p.causal || key(n, e) <= query(n, e));
      return seen ? s * (scale * log2_e) : -cuda::infinity<float>();
    });
  else
    each([&](int n, int e, float s) {
      return rules.masked(s * scale, query(n, e), key(n, e)) * log2_e;
    });
}

// The dropout mask of a lane's weights c[count][4]. Does not apply dropout's scale factor.
template <bool plain, int count>
struct Kept {
  static_assert(count % 2 == 0 && (plain || count <= 8));
  std::uint32_t bits[count / 2];  // [n / 2], bit 16 · (n % 2) + 8 · (e / 2) + e % 2

  __device__ float operator()(int n, int e, float value) const {
    if constexpr (plain) return value;
    return bits[n / 2] >> (16 * (n % 2) + 8 * (e / 2) + e % 2) & 1u ? value : 0.0f;
  }
  // The same for two columns of halves in a word, a factor's a[k][2 · (n % 2) + half] with n / 2 =
  // k: a byte's two bits become the signs of two bytes, which are spread over the halves.
  template <int part>
  __device__ std::uint32_t packed(int k, std::uint32_t pair) const {
    if constexpr (plain) return pair;
    constexpr int spread = 8, low = part | spread, high = (part + 4) | spread;
    std::uint32_t mask;
    asm("prmt.b32 %0, %1, %2, %3;"
        : "=r"(mask)
        : "r"(bits[k] << 7), "r"(bits[k] << 6), "n"(low | low << 4 | high << 8 | high << 12));
    return pair & mask;
  }

  // Rows are queries, and the first is i; columns are keys from j on; both are multiples of 16. The
  // four lanes of two rows draw for 16 columns each; of fewer than 64 columns, several draw the
  // same.
  template <class S>
  __device__ static Kept of_rows(const ScoreRules<S, plain>& rules, int i, int j) {
    static_assert(plain || count <= 8);
    if (plain || !rules.drops()) return all();
    const int lane = static_cast<int>(threadIdx.x) % 32, t = lane % 4;
    // A group's bytes are queries r, twice, and r + 8, twice.
    const std::uint32_t drawn =
        __byte_perm(rules.kept(i + lane / 4, j + 16 * (t % (count / 2))), 0, 0x3120);
    Kept kept;
#pragma unroll
    for (int k = 0; k < count / 2; ++k)
      kept.bits[k] = __shfl_sync(0xffffffffu, drawn, k, 4) >> (2 * t);
    return kept;
  }
  // Rows are keys, and the first is j; columns are queries from i on; both are multiples of 16.
  // Eight lanes draw for 16 columns; a lane has columns of two groups of each.
  template <class S>
  __device__ static Kept of_columns(const ScoreRules<S, plain>& rules, int i, int j) {
    if (!rules.drops()) return all();
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    const std::uint32_t drawn = rules.kept(i + lane / 8 % (count / 2) * 16 + lane % 8, j);
    Kept kept;
#pragma unroll
    for (int k = 0; k < count / 2; ++k) {
      const std::uint32_t even = __shfl_sync(0xffffffffu, drawn, 8 * k + 2 * t) >> g,
                          odd = __shfl_sync(0xffffffffu, drawn, 8 * k + 2 * t + 1) >> g;
      kept.bits[k] = (even & 0x01010101u) | (odd << 1 & ~0x01010101u);
    }
    return kept;
  }

 private:
  __device__ static Kept all() {
    Kept kept;
#pragma unroll
    for (int k = 0; k < count / 2; ++k) kept.bits[k] = ~0u;
    return kept;
  }
};

// The logsumexp times log2(e), for backward; +inf, which makes every weight zero, for a query
// without keys.
__device__ inline float saved_base(float logsumexp) {
  return logsumexp == -cuda::infinity<float>() ? cuda::infinity<float>() : logsumexp * log2_e;
}

}  // namespace ebb::attention
