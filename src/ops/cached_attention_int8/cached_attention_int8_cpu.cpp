#include "ebb/decode.h"
#include "ops/cache_write_int8/cache_write_int8.h"
#include "ops/cached_attention/forward_cpu.h"
#include "ops/cached_attention_int8/cached_attention_int8.h"

namespace ebb {
namespace {

using In = CachedAttentionInt8;

// Codes in one operand, scales in the next.
class CodeCache {
 public:
  CodeCache(const KernelArgs& args, int operand)
      : codes_(args.in<std::uint8_t>(operand)), scales_(args.in<float>(operand + 1)) {}

  template <class C>
  const C* rows(std::int64_t first, std::int64_t count, std::int64_t size, std::int64_t padded,
                C* buffer) const {
    const std::int64_t blocks = int8_cache_blocks(size);
    for (std::int64_t j = 0; j < count; ++j) {
      const std::uint8_t* from = codes_ + (first + j) * size;
      const float* scales = scales_ + (first + j) * blocks;
      C* to = buffer + j * padded;
      for (std::int64_t at = 0; at < size; at += int8_cache_block) {
        const C scale = static_cast<C>(scales[at / int8_cache_block]);
        const std::int64_t end = std::min(at + int8_cache_block, size);
        for (std::int64_t i = at; i < end; ++i)
          to[i] = static_cast<C>(static_cast<int>(from[i]) - int8_cache_zero) * scale;
      }
      std::fill(to + size, to + padded, C(0));
    }
    return buffer;
  }

 private:
  const std::uint8_t* codes_;
  const float* scales_;
};

}  // namespace

Kernel bind_cached_attention_int8_cpu(const KernelRequest& request,
                                      const CachedAttentionAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    const CachedForward<typename decltype(tag)::type, CodeCache> forward(
        CachedAttentionProblem(
            request, a,
            {.keys = In::keys, .values = In::values, .positions = In::positions, .rows = In::rows}),
        threads());
    return Kernel{forward, forward.workspace()};
  });
}

}  // namespace ebb
