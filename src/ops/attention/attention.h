// Attention in tiles: neither direction ever stores a T × S matrix.
//
// Letters used throughout: B batch, H query heads, Hkv key and value heads (H is a multiple of it,
// and query head h reads head h / (H / Hkv)), T queries, S keys, D and Dv the head sizes of q and k
// and of v.
#pragma once

#include <array>

#include "ebb/op.h"

namespace ebb {

struct AttentionAttributes {
  bool causal = false;  // query i sees keys j <= i
  double scale = 1.0;
  double dropout = 0.0;
  RandomKey key = {};
  bool operator==(const AttentionAttributes&) const = default;
  void visit(auto&& field) {
    field("causal", causal);
    field("scale", scale);
    field("dropout", dropout);
    field("key", key.value);
  }
};

// (q, k, v[, mask]) → (o (B, T, H, Dv), logsumexp of the scores (B, H, T)). Results are stored
// token by token, the layout of the products around attention. The second output is only for
// backward: it is float32 (float64 for float64), -inf for a query that sees no key, and has no
// gradient.
const Op& attention_op();

struct AttentionGradAttributes {
  AttentionAttributes attention;
  bool packed = false;  // one result with the three gradients of a token next to each other
  bool operator==(const AttentionGradAttributes&) const = default;
  void visit(auto&& field) {
    attention.visit(field);
    field("packed", packed);
  }
};

// (q, k, v, o, logsumexp, do[, mask]) → (dq (B, T, H, D), dk (B, S, Hkv, D), dv (B, S, Hkv, Dv)),
// with o and do as (B, H, T, Dv). `o` and `logsumexp` are redundant: they can be computed from the
// rest. Packed, for T = S: (B, T, H · D + Hkv · D + Hkv · Dv), the gradient of one projection of
// which q, k and v are slices.
const Op& attention_grad_op();

// Layout of the gradients of q, k and v in the results of attention_grad, token by token.
struct GradientPlace {
  int output = 0;
  std::int64_t offset = 0, row = 0;  // elements to the first token, and from one to the next
};
std::array<GradientPlace, 3> gradient_places(const KernelRequest& request, bool packed);

// The same in primitive ops, with every matrix in memory.
std::vector<Tensor> attention_reference(std::span<const Tensor> inputs,
                                        const AttentionAttributes& attributes);
std::vector<Tensor> attention_grad_reference(std::span<const Tensor> inputs,
                                             const AttentionGradAttributes& attributes);

// See dropout.h.
struct AttentionDropoutAttributes {
  Shape scores;  // (B, H, T, S)
  DType dtype = f32;
  double probability = 0.0;
  RandomKey key = {};
  bool operator==(const AttentionDropoutAttributes&) const = default;
  void visit(auto&& field) {
    field("shape", scores);
    field("dtype", dtype);
    field("probability", probability);
    field("key", key.value);
  }
};
const Op& attention_dropout_op();

Kernel bind_attention_cpu(const KernelRequest& request, const AttentionAttributes& attributes);
Kernel bind_attention_cuda(const KernelRequest& request, const AttentionAttributes& attributes);
Kernel bind_attention_grad_cpu(const KernelRequest& request,
                               const AttentionGradAttributes& attributes);
Kernel bind_attention_grad_cuda(const KernelRequest& request,
                                const AttentionGradAttributes& attributes);
Kernel bind_attention_dropout_cuda(const KernelRequest& request,
                                   const AttentionDropoutAttributes& attributes);

}  // namespace ebb
