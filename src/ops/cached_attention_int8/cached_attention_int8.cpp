#include "ops/cached_attention_int8/cached_attention_int8.h"

#include <fmt/core.h>

#include <cmath>

#include "ebb/decode.h"
#include "ebb/ops.h"
#include "ops/cache_write_int8/cache_write_int8.h"

namespace ebb {
namespace {

using In = CachedAttentionInt8;

constexpr CachedAttentionOperands operands{In::keys, In::values, In::positions, In::rows};

std::vector<TensorType> infer(const Call& call, const CachedAttentionAttributes& a) {
  call.require_floating(In::q);
  call.require_rank(In::q, 4);
  require_int8_caches(call, In::keys);
  const Shape &q = call.shape(In::q), &v = call.shape(In::values);
  require_cached_attention(call, a, operands);
  require_tokens(call, In::positions, q[0], q[2]);
  return {{{q[0], q[2], q[1], v[3]}, call.dtype(In::q)}};
}

// The numbers that codes and scales stand for, (R, Hkv, S, D).
Tensor numbers(const Tensor& codes, const Tensor& scales, DType dtype) {
  const Shape& s = codes.shape();
  const std::int64_t blocks = int8_cache_blocks(s[3]), whole = blocks * int8_cache_block;
  const Tensor of_elements = slice(reshape(expand(unsqueeze(cast(scales, dtype), -1),
                                                  {s[0], s[1], s[2], blocks, int8_cache_block}),
                                           {s[0], s[1], s[2], whole}),
                                   3, 0, s[3]);
  return (cast(codes, dtype) - static_cast<double>(int8_cache_zero)) * of_elements;
}

std::vector<Tensor> reference(std::span<const Tensor> in, const CachedAttentionAttributes& a) {
  const DType dtype = in[In::q].dtype();
  return {apply1(
      cached_attention_op(),
      {in[In::q], numbers(in[In::keys], in[In::key_scales], dtype),
       numbers(in[In::values], in[In::value_scales], dtype), in[In::positions], in[In::rows]},
      a)};
}

bool accepts(const Arg& arg, int input, const CachedAttentionAttributes&) {
  return cached_attention_accepts(arg, input);
}

Cost cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
          const CachedAttentionAttributes&) {
  return cached_attention_cost(inputs, outputs, operands);
}

}  // namespace

const Op& cached_attention_int8_op() {
  static const TypedOp<CachedAttentionAttributes> op({
      .name = "cached_attention_int8",
      .summary = "attention of new tokens over a cache of keys and values in 8 bits",
      .infer = infer,
      .reference = reference,
      .accepts = accepts,
      .cpu = bind_cached_attention_int8_cpu,
      .cost = cost,
  });
  return op;
}

Tensor cached_attention(const Tensor& q, const Int8KeysValues& cache, const Tensor& positions,
                        const Tensor& rows, const CachedAttentionOptions& options) {
  return permute(apply1(cached_attention_int8_op(),
                        {q, cache.keys.codes, cache.keys.scales, cache.values.codes,
                         cache.values.scales, positions, rows},
                        attributes_of(q, options)),
                 {0, 2, 1, 3});
}

}  // namespace ebb
