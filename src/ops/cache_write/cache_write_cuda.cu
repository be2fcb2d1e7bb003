// One thread moves an element of a new token's keys or values.
#include "ops/cache_write/cache_write.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/strided.cuh"
#include "ops/dispatch.h"
#include "ops/resident/steps.h"

namespace ebb {
namespace {

using namespace cuda;

template <class T>
__global__ void write(CacheWriteProblem p, const T* k, const T* v, const std::int32_t* positions,
                      const std::int32_t* rows, T* keys, T* values, FaultSlot fault) {
  const std::int64_t size = p.k.size + p.v.size;  // of a head's keys and values together
  for_items(p.batches * p.tokens * p.heads * size, [&](std::int64_t item) {
    const std::int64_t line = quotient(item, size), i = item - line * size;
    const std::int64_t token = quotient(line, p.heads), h = line - token * p.heads;
    const std::int64_t b = quotient(token, p.tokens), t = token - b * p.tokens;
    const std::int64_t position = positions[token], row = rows[b];
    if (position < 0) return;
    if (position >= p.cache_tokens) {
      fault.out_of_range(token, position, p.cache_tokens);
      return;
    }
    if (row < 0 || row >= p.cache_rows) {
      fault.out_of_range(b, row, p.cache_rows);
      return;
    }
    const bool key = i < p.k.size;
    const CacheWriteProblem::Part& part = key ? p.k : p.v;
    const std::int64_t column = key ? i : i - p.k.size;
    const std::int64_t from =
        b * part.batch_stride + h * part.head_stride + t * part.token_stride + column;
    (key ? keys : values)[((row * p.heads + h) * p.cache_tokens + position) * part.size + column] =
        (key ? k : v)[from];
  });
}

}  // namespace

Kernel bind_cache_write_cuda(const KernelRequest& request, const NoAttributes&) {
  return dispatch_size(request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const CacheWriteProblem p(request);
    const auto run = [p](const KernelArgs& args) {
      for (int i = 0; i < 2; ++i) {
        const std::int64_t size = i == 0 ? p.k.size : p.v.size;
        const std::size_t bytes =
            static_cast<std::size_t>(p.cache_rows * p.heads * p.cache_tokens * size) * sizeof(T);
        if (args.in<T>(i) != args.out<T>(i) && bytes > 0)
          check(cudaMemcpyAsync(args.out<T>(i), args.in<T>(i), bytes, cudaMemcpyDeviceToDevice,
                                stream_of(args)),
                "cache_write");
      }
      const std::int64_t items = p.batches * p.tokens * p.heads * (p.k.size + p.v.size);
      launch({args, "cache_write", item_grid(items), dim3(item_threads)}, write<T>, p,
             args.in<T>(CacheWrite::k), args.in<T>(CacheWrite::v),
             args.in<std::int32_t>(CacheWrite::positions), args.in<std::int32_t>(CacheWrite::rows),
             args.out<T>(CacheWrite::new_keys), args.out<T>(CacheWrite::new_values),
             FaultSlot(args));
    };
    if (sizeof(T) != 2 || p.tokens != 1 || p.batches > resident::most_rows) return Kernel{run};
    resident::Step step = resident::step(request, run);
    step.task = [p](const KernelArgs& args) -> std::optional<resident::Task> {
      if (args.in<T>(CacheWrite::keys) != args.out<T>(CacheWrite::new_keys) ||
          args.in<T>(CacheWrite::values) != args.out<T>(CacheWrite::new_values))
        return {};  // the caches would have to be copied first
      return resident::CacheWriting{.k = args.in<T>(CacheWrite::k),
                                    .v = args.in<T>(CacheWrite::v),
                                    .positions = args.in<std::int32_t>(CacheWrite::positions),
                                    .rows = args.in<std::int32_t>(CacheWrite::rows),
                                    .keys = args.out<T>(CacheWrite::new_keys),
                                    .values = args.out<T>(CacheWrite::new_values),
                                    .k_batch = p.k.batch_stride,
                                    .k_head = p.k.head_stride,
                                    .v_batch = p.v.batch_stride,
                                    .v_head = p.v.head_stride,
                                    .batches = static_cast<std::int32_t>(p.batches),
                                    .heads = static_cast<std::int32_t>(p.heads),
                                    .size = static_cast<std::int32_t>(p.k.size),
                                    .value_size = static_cast<std::int32_t>(p.v.size),
                                    .cache_rows = static_cast<std::int32_t>(p.cache_rows),
                                    .cache_tokens = static_cast<std::int32_t>(p.cache_tokens),
                                    .instruction = args.instruction + 1};
    };
    return Kernel{step};
  });
}

}  // namespace ebb
