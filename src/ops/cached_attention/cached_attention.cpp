#include "ops/cached_attention/cached_attention.h"

#include <fmt/core.h>

#include <cmath>

#include "ebb/decode.h"
#include "ebb/ops.h"
#include "ops/cuda_kernels.h"

namespace ebb {
namespace {

std::vector<TensorType> infer(const Call& call, const CachedAttentionAttributes& a) {
  for (int i = 0; i < 3; ++i) {
    call.require_floating(i);
    call.require_rank(i, 4);
    call.require_same_dtype(0, i);
  }
  const Shape &q = call.shape(CachedAttention::q), &k = call.shape(CachedAttention::keys),
              &v = call.shape(CachedAttention::values);
  if (k[0] != v[0] || k[1] != v[1] || k[2] != v[2])
    call.fail_shape("the caches of keys and values must agree in rows, heads and tokens");
  require_cached_attention(call, a);
  const TensorType positions{{q[0], q[2]}, i32}, rows{{q[0]}, i32};
  if (call.inputs[CachedAttention::positions] != positions)
    call.fail_shape(fmt::format("positions must be {}, but are {}", to_string(positions),
                                to_string(call.inputs[CachedAttention::positions])));
  if (call.inputs[CachedAttention::rows] != rows)
    call.fail_shape(fmt::format("rows must be {}, but are {}", to_string(rows),
                                to_string(call.inputs[CachedAttention::rows])));
  return {{{q[0], q[2], q[1], v[3]}, call.dtype(CachedAttention::q)}};
}

// Attention with a mask over the whole rows of the cache.
std::vector<Tensor> reference(std::span<const Tensor> in, const CachedAttentionAttributes& a) {
  const std::int64_t tokens = in[CachedAttention::keys].shape()[2],
                     batch = in[CachedAttention::q].shape()[0];
  const auto rows_of = [&](const Tensor& cache) {
    const Shape& s = cache.shape();
    return reshape(embedding(reshape(cache, {s[0], s[1] * s[2] * s[3]}), in[CachedAttention::rows]),
                   {batch, s[1], s[2], s[3]});
  };
  const Tensor key = arange(tokens, i32, in[CachedAttention::q].device());           // (S)
  const Tensor query = unsqueeze(unsqueeze(in[CachedAttention::positions], 1), -1);  // (B, 1, T, 1)
  Tensor visible = less_equal(key, query);
  if (a.window > 0)
    visible = logical_and(visible, greater(key, query - scalar_like(query, double(a.window))));
  const Tensor y = scaled_dot_product_attention(
      in[CachedAttention::q], rows_of(in[CachedAttention::keys]),
      rows_of(in[CachedAttention::values]), {.scale = a.scale, .mask = visible});
  return {permute(y, {0, 2, 1, 3})};
}

bool accepts(const Arg& arg, int input, const CachedAttentionAttributes&) {
  return cached_attention_accepts(arg, input);
}

Cost cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
          const CachedAttentionAttributes&) {
  return cached_attention_cost(inputs, outputs);
}

}  // namespace

CachedAttentionAttributes attributes_of(const Tensor& q, const CachedAttentionOptions& options) {
  const double size = q.rank() > 0 ? static_cast<double>(q.shape().back()) : 1.0;
  return {options.scale.value_or(1.0 / std::sqrt(size)), options.window};
}

void require_cached_attention(const Call& call, const CachedAttentionAttributes& a,
                              const CachedAttentionOperands& operands) {
  const Shape &q = call.shape(CachedAttention::q), &k = call.shape(operands.keys);
  if (k[1] == 0 ? q[1] != 0 : q[1] % k[1] != 0)
    call.fail_shape(fmt::format(
        "the number of query heads must be a multiple of that of key heads, but they are {} and {}",
        q[1], k[1]));
  if (q[3] != k[3] || q[3] == 0)
    call.fail_shape(fmt::format(
        "queries and keys must have the same head size above 0, but have {} and {}", q[3], k[3]));
  if (!std::isfinite(a.scale))
    call.fail_value(fmt::format("the scale must be finite, but is {}", a.scale));
  if (a.window < 0)
    call.fail_value(fmt::format("the window must not be negative, but is {}", a.window));
}

bool cached_attention_accepts(const Arg& arg, int input) {
  if (input != CachedAttention::q) return arg.contiguous();
  return arg.strides.back() == 1 || arg.shape().back() <= 1;
}

// The cost of attention over the whole cache, because positions are not known here.
Cost cached_attention_cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
                           const CachedAttentionOperands& operands) {
  const auto shape = [&](int input) -> const Shape& {
    return inputs[static_cast<std::size_t>(input)].shape;
  };
  Cost result = default_cost(inputs, outputs);
  const Shape& q = shape(CachedAttention::q);
  result.flops = 2.0 * static_cast<double>(q[0] * q[1] * q[2]) *
                 static_cast<double>(shape(operands.keys)[2]) *
                 static_cast<double>(q[3] + shape(operands.values)[3]);
  result.work = Work::attention;
  return result;
}

const Op& cached_attention_op() {
  static const TypedOp<CachedAttentionAttributes> op({
      .name = "cached_attention",
      .summary = "attention of new tokens over a cache of keys and values",
      .infer = infer,
      .reference = reference,
      .accepts = accepts,
      .cpu = bind_cached_attention_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_cached_attention_cuda),
      .cost = cost,
  });
  return op;
}

Tensor cached_attention(const Tensor& q, const Tensor& keys, const Tensor& values,
                        const Tensor& positions, const Tensor& rows,
                        const CachedAttentionOptions& options) {
  return permute(
      apply1(cached_attention_op(), {q, keys, values, positions, rows}, attributes_of(q, options)),
      {0, 2, 1, 3});
}

}  // namespace ebb
