#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "ops/cache_write/cache_write.h"
#include "ops/dispatch.h"

namespace ebb {
namespace {

template <class T>
void write_token(const CacheWriteProblem& p, const CacheWriteProblem::Part& part, const T* from,
                 T* cache, std::int64_t row, std::int64_t position) {
  for (std::int64_t h = 0; h < p.heads; ++h)
    std::copy_n(from + h * part.head_stride, part.size,
                cache + ((row * p.heads + h) * p.cache_tokens + position) * part.size);
}

template <class T>
void run(const CacheWriteProblem& p, const KernelArgs& args) {
  for (int i = 0; i < 2; ++i) {
    const std::int64_t size = i == 0 ? p.k.size : p.v.size;
    if (args.inputs[static_cast<std::size_t>(i)] != args.outputs[static_cast<std::size_t>(i)])
      std::memcpy(
          args.out<T>(i), args.in<T>(i),
          static_cast<std::size_t>(p.cache_rows * p.heads * p.cache_tokens * size) * sizeof(T));
  }
  const std::int32_t *positions = args.in<std::int32_t>(CacheWrite::positions),
                     *rows = args.in<std::int32_t>(CacheWrite::rows);
  parallel_for(
      p.batches * p.tokens,
      std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, p.heads * (p.k.size + p.v.size))),
      [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t token = begin; token < end; ++token) {
          const std::int64_t b = token / p.tokens, t = token % p.tokens;
          const std::int64_t position = positions[token], row = rows[b];
          if (position < 0) continue;
          if (position >= p.cache_tokens) {
            args.fault->out_of_range(token, position, p.cache_tokens);
            continue;
          }
          if (row < 0 || row >= p.cache_rows) {
            args.fault->out_of_range(b, row, p.cache_rows);
            continue;
          }
          write_token(p, p.k,
                      args.in<T>(CacheWrite::k) + b * p.k.batch_stride + t * p.k.token_stride,
                      args.out<T>(CacheWrite::new_keys), row, position);
          write_token(p, p.v,
                      args.in<T>(CacheWrite::v) + b * p.v.batch_stride + t * p.v.token_stride,
                      args.out<T>(CacheWrite::new_values), row, position);
        }
      });
}

}  // namespace

Kernel bind_cache_write_cpu(const KernelRequest& request, const NoAttributes&) {
  return dispatch_size(request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{[p = CacheWriteProblem(request)](const KernelArgs& args) { run<T>(p, args); }};
  });
}

}  // namespace ebb
