// Attention of new tokens over a cache in 8 bits (see ebb/decode.h): codes are turned into numbers
// a tile of keys at a time, inside the kernel.
//
// As for other caches, the result for a token depends neither on the other tokens of the call nor
// on the size of the cache, to the bit.
#pragma once

#include "ops/cached_attention/cached_attention.h"

namespace ebb {

// Operands in order.
struct CachedAttentionInt8 {
  enum Input : int { q, keys, key_scales, values, value_scales, positions, rows };
};

// (q, keys, key_scales, values, value_scales, positions, rows) → (B, T, H, Dv), token by token.
const Op& cached_attention_int8_op();

Kernel bind_cached_attention_int8_cpu(const KernelRequest& request,
                                      const CachedAttentionAttributes& attributes);

}  // namespace ebb
