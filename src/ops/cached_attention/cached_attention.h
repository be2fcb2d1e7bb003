// Attention of new tokens over a cache of keys and values (see ebb/decode.h).
//
// Keys are always summed in the same pieces, which begin at multiples of a fixed number of
// positions. So the result for a token depends neither on the other tokens of the call nor on the
// size of the cache, to the bit.
#pragma once

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

// (q, keys, values, positions, rows) → (B, T, H, Dv), token by token.
const Op& cached_attention_op();

// A bound call. q is read by its strides; the last is 1.
struct CachedAttentionProblem {
  std::int64_t batches, heads, kv_heads, tokens, size, value_size, cache_rows, cache_tokens;
  std::int64_t group;                                    // query heads that read one key head
  std::int64_t batch_stride, head_stride, token_stride;  // of q
  double scale;
  std::int64_t window;

  CachedAttentionProblem(const KernelRequest& request, const CachedAttentionAttributes& a)
      : batches(request.in(0).shape()[0]),
        heads(request.in(0).shape()[1]),
        kv_heads(request.in(1).shape()[1]),
        tokens(request.in(0).shape()[2]),
        size(request.in(0).shape()[3]),
        value_size(request.in(2).shape()[3]),
        cache_rows(request.in(1).shape()[0]),
        cache_tokens(request.in(1).shape()[2]),
        group(kv_heads > 0 ? heads / kv_heads : 0),
        batch_stride(request.in(0).strides[0]),
        head_stride(request.in(0).strides[1]),
        token_stride(request.in(0).strides[2]),
        scale(a.scale),
        window(a.window) {}
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
