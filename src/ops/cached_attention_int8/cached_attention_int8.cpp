#include "ops/cached_attention_int8/cached_attention_int8.h"

#include <fmt/core.h>

#include <cmath>

#include "ebb/decode.h"
#include "ebb/ops.h"
#include "ops/cache_write_int8/cache_write_int8.h"

namespace ebb {
namespace {

using Operand = CachedAttentionInt8;

constexpr CachedAttentionOperands operands{Operand::keys, Operand::values, Operand::positions,
                                           Operand::rows};

std::vector<TensorType> infer_int8(const Call& call, const CachedAttentionAttributes& a) {
  call.require_floating(Operand::q);
  call.require_rank(Operand::q, 4);
  require_int8_caches(call, Operand::keys);
  const Shape &q = call.shape(Operand::q), &v = call.shape(Operand::values);
  require_cached_attention(call, a, operands);
  require_tokens(call, Operand::positions, q[0], q[2]);
  return {{{q[0], q[2], q[1], v[3]}, call.dtype(Operand::q)}};
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

std::vector<Tensor> reference_int8(std::span<const Tensor> in, const CachedAttentionAttributes& a) {
  const DType dtype = in[Operand::q].dtype();
  return {apply1(cached_attention_op(),
                 {in[Operand::q], numbers(in[Operand::keys], in[Operand::key_scales], dtype),
                  numbers(in[Operand::values], in[Operand::value_scales], dtype),
                  in[Operand::positions], in[Operand::rows]},
                 a)};
}

bool accepts_int8(const Arg& arg, int input, const CachedAttentionAttributes&) {
  return cached_attention_accepts(arg, input);
}

Cost cost_int8(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
               const CachedAttentionAttributes&) {
  return cached_attention_cost(inputs, outputs, operands);
}

}  // namespace

const Op& cached_attention_int8_op() {
  static const TypedOp<CachedAttentionAttributes> op({
      .name = "cached_attention_int8",
      .summary = "attention of new tokens over a cache of keys and values in 8 bits",
      .infer = infer_int8,
      .reference = reference_int8,
      .accepts = accepts_int8,
      .cpu = bind_cached_attention_int8_cpu,
      .cost = cost_int8,
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
