#pragma once

#include "ebb/op.h"

namespace ebb {

// Operands in order.
struct CacheWrite {
  enum Input : int { keys, values, k, v, positions, rows };
  enum Output : int { new_keys, new_values };
};

// (keys, values, k, v, positions, rows) → (keys, values), both in place.
const Op& cache_write_op();

// A bound call. k and v are read by their strides; the last is 1.
struct CacheWriteProblem {
  struct Part {  // keys or values
    std::int64_t size, batch_stride, head_stride, token_stride;
    explicit Part(const Arg& x)
        : size(x.shape()[3]),
          batch_stride(x.strides[0]),
          head_stride(x.strides[1]),
          token_stride(x.strides[2]) {}
  };
  std::int64_t batches, heads, tokens, cache_rows, cache_tokens;
  Part k, v;

  explicit CacheWriteProblem(const KernelRequest& request)
      : batches(request.in(CacheWrite::k).shape()[0]),
        heads(request.in(CacheWrite::k).shape()[1]),
        tokens(request.in(CacheWrite::k).shape()[2]),
        cache_rows(request.in(CacheWrite::keys).shape()[0]),
        cache_tokens(request.in(CacheWrite::keys).shape()[2]),
        k(request.in(CacheWrite::k)),
        v(request.in(CacheWrite::v)) {}
};

Kernel bind_cache_write_cpu(const KernelRequest& request, const NoAttributes&);
Kernel bind_cache_write_cuda(const KernelRequest& request, const NoAttributes&);

}  // namespace ebb
