#include "ops/cached_attention/forward_cpu.h"

namespace ebb {
namespace {

// Rows as they are stored: in place if the kernel computes in their type, otherwise widened.
template <class T>
class PlainCache {
 public:
  PlainCache(const KernelArgs& args, int operand) : rows_(args.in<T>(operand)) {}

  template <class C>
  const C* rows(std::int64_t first, std::int64_t count, std::int64_t size, std::int64_t padded,
                C* buffer) const {
    const T* from = rows_ + first * size;
    if constexpr (std::is_same_v<T, C>)
      if (size == padded) return from;
    for (std::int64_t j = 0; j < count; ++j) {
      attention::widen_row(from + j * size, buffer + j * padded, size);
      std::fill(buffer + j * padded + size, buffer + (j + 1) * padded, C(0));
    }
    return buffer;
  }

 private:
  const T* rows_;
};

}  // namespace

Kernel bind_cached_attention_cpu(const KernelRequest& request, const CachedAttentionAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const CachedForward<T, PlainCache<T>> forward(CachedAttentionProblem(request, a), threads());
    return Kernel{forward, forward.workspace()};
  });
}

}  // namespace ebb
