// Keys and values of new tokens into a cache in 8 bits (see ebb/decode.h).
#pragma once

#include "ebb/op.h"

namespace ebb {

// Operands in order.
struct CacheWriteInt8 {
  enum Input : int { keys, key_scales, values, value_scales, k, v, positions, rows };
  // Outputs are the first four, in place.
};

// The code of the value zero: a number is (code - zero) × scale.
inline constexpr int int8_cache_zero = 128;

const Op& cache_write_int8_op();

// Checks the four tensors of caches in 8 bits from input `first` on.
void require_int8_caches(const Call& call, int first);
// Checks positions (B, T) at input `first`, and rows (B) after them.
void require_tokens(const Call& call, int first, std::int64_t batches, std::int64_t tokens);

Kernel bind_cache_write_int8_cpu(const KernelRequest& request, const NoAttributes&);

}  // namespace ebb
