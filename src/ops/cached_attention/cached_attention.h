// Attention of new tokens over a cache of keys and values (see ebb/decode.h).
//
// Keys are always summed in the same pieces, which begin at multiples of a fixed number of
// positions. So the result for a token depends neither on the other tokens of the call nor on the
// size of the cache, to the bit.
#pragma once

#include "ebb/decode.h"
#include "ebb/op.h"

namespace ebb {

struct CachedAttentionAttributes {
  double scale = 1.0;
  std::int64_t window = 0;  // 0: none
  bool operator==(const CachedAttentionAttributes&) const = default;
  void visit(auto&& field) {
    field("scale", scale);
    field("window", window);
  }
};

// Operands in order.
struct CachedAttention {
  enum Input : int { q, keys, values, positions, rows };
};

// (q, keys, values, positions, rows) → (B, T, H, Dv), token by token.
const Op& cached_attention_op();

// Where a call has its operands; a cache may be more than one.
struct CachedAttentionOperands {
  int keys = CachedAttention::keys, values = CachedAttention::values;  // the first of each
  int positions = CachedAttention::positions, rows = CachedAttention::rows;
};

// What the ops over all kinds of caches share.
CachedAttentionAttributes attributes_of(const Tensor& q, const CachedAttentionOptions& options);
// Errors of heads, their size and the attributes.
void require_cached_attention(const Call& call, const CachedAttentionAttributes& a,
                              const CachedAttentionOperands& operands = {});
bool cached_attention_accepts(const Arg& arg, int input);
Cost cached_attention_cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
                           const CachedAttentionOperands& operands = {});

// A bound call. q is read by its strides; the last is 1.
struct CachedAttentionProblem {
  std::int64_t batches, heads, kv_heads, tokens, size, value_size, cache_rows, cache_tokens;
  std::int64_t group;                                    // query heads that read one key head
  std::int64_t batch_stride, head_stride, token_stride;  // of q
  double scale;
  std::int64_t window;
  CachedAttentionOperands operands;

  CachedAttentionProblem(const KernelRequest& request, const CachedAttentionAttributes& a,
                         const CachedAttentionOperands& o = {})
      : batches(request.in(CachedAttention::q).shape()[0]),
        heads(request.in(CachedAttention::q).shape()[1]),
        kv_heads(request.in(o.keys).shape()[1]),
        tokens(request.in(CachedAttention::q).shape()[2]),
        size(request.in(CachedAttention::q).shape()[3]),
        value_size(request.in(o.values).shape()[3]),
        cache_rows(request.in(o.keys).shape()[0]),
        cache_tokens(request.in(o.keys).shape()[2]),
        group(kv_heads > 0 ? heads / kv_heads : 0),
        batch_stride(request.in(CachedAttention::q).strides[0]),
        head_stride(request.in(CachedAttention::q).strides[1]),
        token_stride(request.in(CachedAttention::q).strides[2]),
        scale(a.scale),
        window(a.window),
        operands(o) {}
};

// The positions [begin, end) that a token at `position` sees.
struct VisibleKeys {
  std::int64_t begin, end;
};
constexpr VisibleKeys visible_keys(std::int64_t position, std::int64_t window) {
  const std::int64_t end = position + 1;
  return {window > 0 && end > window ? end - window : 0, end};
}

Kernel bind_cached_attention_cpu(const KernelRequest& request,
                                 const CachedAttentionAttributes& attributes);
Kernel bind_cached_attention_cuda(const KernelRequest& request,
                                  const CachedAttentionAttributes& attributes);

}  // namespace ebb
