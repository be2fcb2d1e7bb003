// Attention and its gradient in primitive ops: every matrix of scores is a tensor here.
#include <limits>

#include "ebb/ops.h"
#include "ops/attention/attention.h"
#include "ops/attention/dropout.h"
#include "ops/attention/operands.h"
#include "ops/pointwise/pointwise.h"

namespace ebb {
namespace {

// (B, H, ...) → (B, Hkv, H / Hkv, ...), so that heads of a group meet their keys by broadcasting.
Tensor grouped(const Tensor& x, std::int64_t kv_heads) {
  const Shape& s = x.shape();
  return reshape(x, {s[0], kv_heads, kv_heads > 0 ? s[1] / kv_heads : 0, s[2], s[3]});
}
Tensor ungrouped(const Tensor& x) {
  const Shape& s = x.shape();
  return reshape(x, {s[0], s[1] * s[2], s[3], s[4]});
}

struct Weights {
  Tensor softmax;    // (B, H, T, S); rows without a visible key are zero
  Tensor logsumexp;  // (B, H, T)
  Tensor factors;    // of dropout, (B, H, T, S), or empty

  Tensor dropped() const { return factors ? softmax * factors : softmax; }
};

Weights weights(const Tensor& q, const Tensor& k, const Tensor& mask,
                const AttentionAttributes& a) {
  const std::int64_t kv_heads = k.shape()[1];
  Tensor scores =
      ungrouped(matmul(grouped(q, kv_heads), unsqueeze(k, 2), Transpose::no, Transpose::yes)) *
      a.scale;
  const Shape shape = scores.shape();
  const Tensor hidden = scalar_like(scores, -std::numeric_limits<double>::infinity());
  if (mask && mask.dtype() == b8)
    scores = where(mask, scores, hidden);
  else if (mask && mask.dtype() == i32)
    scores = where(greater_equal(arange(shape[3], i32, q.device()), mask), scores, hidden);
  else if (mask)
    scores = scores + cast(stop_gradient(mask), scores.dtype());
  if (a.causal)
    scores = where(less_equal(arange(shape[3], i64, q.device()),
                              unsqueeze(arange(shape[2], i64, q.device()), -1)),
                   scores, hidden);
  const Tensor zero = scalar_like(scores, 0.0), one = scalar_like(scores, 1.0);
  // Any finite base gives the same result: rows that see nothing, or have no keys, take 0.
  Tensor base = zero;
  if (shape[3] > 0) {
    const Tensor top = stop_gradient(max(scores, {-1}, Keep::yes));
    base = where(equal(top, hidden), zero, top);
  }
  const Tensor e = exp(scores - base), total = sum(e, {-1}, Keep::yes);
  Weights result{.softmax = e / where(equal(total, zero), one, total),
                 .logsumexp = squeeze(base + log(total), -1),
                 .factors = {}};
  if (a.dropout > 0.0)
    result.factors = attention_dropout(shape, a.dropout, scores.dtype(), q.device(), a.key);
  return result;
}

// Half types are computed in float, as the kernels do.
Tensor widened(const Tensor& x) { return x.dtype() == f64 ? x : cast(x, f32); }

}  // namespace

std::vector<Tensor> attention_reference(std::span<const Tensor> inputs,
                                        const AttentionAttributes& a) {
  const Tensor q = widened(inputs[Attention::q]), k = widened(inputs[Attention::k]),
               v = widened(inputs[Attention::v]);
  const Weights w =
      weights(q, k, inputs.size() > Attention::mask ? inputs[Attention::mask] : Tensor{}, a);
  const Tensor o = ungrouped(matmul(grouped(w.dropped(), v.shape()[1]), unsqueeze(v, 2)));
  return {cast(permute(o, {0, 2, 1, 3}), inputs[Attention::q].dtype()), w.logsumexp};
}

std::vector<Tensor> attention_grad_reference(std::span<const Tensor> inputs,
                                             const AttentionGradAttributes& attributes) {
  const AttentionAttributes& a = attributes.attention;
  const Tensor q = widened(inputs[AttentionGrad::q]), k = widened(inputs[AttentionGrad::k]),
               v = widened(inputs[AttentionGrad::v]);
  const std::int64_t kv_heads = k.shape()[1];
  const Tensor grad = grouped(widened(inputs[AttentionGrad::grad]), kv_heads);
  const Weights w = weights(
      q, k, inputs.size() > AttentionGrad::mask ? inputs[AttentionGrad::mask] : Tensor{}, a);

  Tensor dw = ungrouped(matmul(grad, unsqueeze(v, 2), Transpose::no, Transpose::yes));
  if (w.factors) dw = dw * w.factors;
  const Tensor mean = sum(w.softmax * dw, {-1}, Keep::yes);
  const Tensor ds = grouped(w.softmax * (dw - mean) * a.scale, kv_heads);
  const Tensor dq = ungrouped(matmul(ds, unsqueeze(k, 2)));
  const Tensor dk = sum(matmul(ds, grouped(q, kv_heads), Transpose::yes), {2});
  const Tensor dv = sum(matmul(grouped(w.dropped(), kv_heads), grad, Transpose::yes), {2});
  const DType dtype = inputs[AttentionGrad::q].dtype();
  const auto token_major = [&](const Tensor& x) { return cast(permute(x, {0, 2, 1, 3}), dtype); };
  std::vector<Tensor> gradients{token_major(dq), token_major(dk), token_major(dv)};
  if (!attributes.packed) return gradients;
  for (Tensor& gradient : gradients) gradient = flatten(gradient, 2);
  return {concat(gradients, 2)};
}

}  // namespace ebb
