// Ops of generation: positions are inputs and not attributes, so that one program serves all
// tokens.
//
// Letters used throughout: B sequences of a call, T new tokens of each, H query heads, Hkv key and
// value heads, D and Dv the head sizes; R rows (sequences) and S tokens of a cache. `positions` is
// int32 (B, T): the place of each new token in its sequence, from 0. A negative position marks a
// token that is not there: padding, or a sequence that has ended. `rows` is int32 (B): the row of
// the cache that each sequence of the call uses.
#pragma once

#include <optional>

#include "ebb/tensor.h"

namespace ebb {

// x (B, H, T, D): turns pairs (i, i + D/2) by the angles of each token's position, as `rotary`.
Tensor rotary_at(const Tensor& x, const Tensor& positions, double base = 10000.0);

struct CachedKeysValues {
  Tensor keys, values;
};
// Writes k (B, Hkv, T, D) and v (B, Hkv, T, Dv) into caches (R, Hkv, S, D) and (R, Hkv, S, Dv) at
// the positions. As the new value of a variable it writes these tokens alone and copies nothing.
CachedKeysValues cache_write(const Tensor& keys, const Tensor& values, const Tensor& k,
                             const Tensor& v, const Tensor& positions, const Tensor& rows);

struct CachedAttentionOptions {
  std::optional<double> scale = {};  // of the scores; none: 1 / √D
  std::int64_t window = 0;  // a token sees itself and at most window - 1 before it; 0: all before
};
// Attention of q (B, H, T, D) over the keys and values of a cache: a token at position p sees the
// positions 0 to p of its row. Gives (B, H, T, Dv), a view; zeros for tokens that are not there.
Tensor cached_attention(const Tensor& q, const Tensor& keys, const Tensor& values,
                        const Tensor& positions, const Tensor& rows,
                        const CachedAttentionOptions& options = {});

// A cache in 8 bits. Heads are cut into blocks of 64 elements; each block has a scale, and each
// element a code: the value is (code - 128) × scale. A block's largest magnitude has the code 255
// or 1.
inline constexpr std::int64_t int8_cache_block = 64;
constexpr std::int64_t int8_cache_blocks(std::int64_t head_size) {
  return (head_size + int8_cache_block - 1) / int8_cache_block;
}
struct Int8Cache {
  Tensor codes;   // uint8 (R, Hkv, S, D)
  Tensor scales;  // float32 (R, Hkv, S, blocks of D)
};
struct Int8KeysValues {
  Int8Cache keys, values;
};
// The same two ops for such a cache, on the CPU alone. Writing has no gradient.
Int8KeysValues cache_write(const Int8KeysValues& cache, const Tensor& k, const Tensor& v,
                           const Tensor& positions, const Tensor& rows);
Tensor cached_attention(const Tensor& q, const Int8KeysValues& cache, const Tensor& positions,
                        const Tensor& rows, const CachedAttentionOptions& options = {});

struct SampleOptions {
  double temperature = 0.0;  // 0: the most likely token, the first of equals
  std::int64_t top_k = 0;    // only the k most likely; 0: all
  double top_p = 1.0;        // only the most likely that together have this probability
};
// Draws a token for each row of logits (B, V). The random numbers are a function of the row's key
// (int64, B), its position (int32, B) and the token alone. The result is int32 (B): -1 where the
// largest logit is not finite or a logit is NaN, and 0 where the position is negative. Logits that
// are equal at the limit of top_k or top_p are all kept. Has no gradient.
Tensor sample_token(const Tensor& logits, const Tensor& keys, const Tensor& positions,
                    const SampleOptions& options = {});

}  // namespace ebb
