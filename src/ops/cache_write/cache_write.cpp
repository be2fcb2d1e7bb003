#include "ops/cache_write/cache_write.h"

#include <fmt/core.h>

#include "ebb/decode.h"
#include "ebb/ops.h"
#include "ops/cuda_kernels.h"

namespace ebb {
namespace {

std::vector<TensorType> infer(const Call& call, const NoAttributes&) {
  for (int i = 0; i < 4; ++i) {
    call.require_floating(i);
    call.require_rank(i, 4);
    call.require_same_dtype(0, i);
  }
  const Shape &keys = call.shape(CacheWrite::keys), &values = call.shape(CacheWrite::values),
              &k = call.shape(CacheWrite::k), &v = call.shape(CacheWrite::v);
  if (keys[0] != values[0] || keys[1] != values[1] || keys[2] != values[2])
    call.fail_shape("the caches of keys and values must agree in rows, heads and tokens");
  if (k[0] != v[0] || k[1] != v[1] || k[2] != v[2])
    call.fail_shape("new keys and values must agree in sequences, heads and tokens");
  if (keys[1] != k[1] || keys[3] != k[3] || values[3] != v[3])
    call.fail_shape("new keys and values must have the heads and head sizes of the caches");
  const TensorType positions{{k[0], k[2]}, i32}, rows{{k[0]}, i32};
  if (call.inputs[CacheWrite::positions] != positions)
    call.fail_shape(fmt::format("positions must be {}, but are {}", to_string(positions),
                                to_string(call.inputs[CacheWrite::positions])));
  if (call.inputs[CacheWrite::rows] != rows)
    call.fail_shape(fmt::format("rows must be {}, but are {}", to_string(rows),
                                to_string(call.inputs[CacheWrite::rows])));
  return {call.inputs[CacheWrite::keys], call.inputs[CacheWrite::values]};
}

// A matrix of zeros and ones maps new tokens to their places in the cache.
std::vector<Tensor> reference(std::span<const Tensor> in, const NoAttributes&) {
  const Shape cache = in[CacheWrite::keys].shape(), fresh = in[CacheWrite::k].shape();
  const std::int64_t places = cache[0] * cache[2], tokens = fresh[0] * fresh[2];
  const Tensor seen = greater_equal(in[CacheWrite::positions],
                                    scalar_like(in[CacheWrite::positions], 0.0));  // (B, T)
  const Tensor place = where(
      seen,
      unsqueeze(in[CacheWrite::rows], 1) * scalar_like(in[CacheWrite::rows], double(cache[2])) +
          in[CacheWrite::positions],
      scalar_like(in[CacheWrite::positions], -1.0));
  const Tensor goes = equal(unsqueeze(arange(places, i32, in[CacheWrite::keys].device()), 1),
                            reshape(place, {1, tokens}));  // (R · S, B · T)
  const auto written = [&](const Tensor& old, const Tensor& x) {
    const std::int64_t heads = old.shape()[1], size = old.shape()[3];
    const Tensor choose = cast(goes, x.dtype());
    const Tensor token_rows = reshape(permute(x, {0, 2, 1, 3}), {tokens, heads * size});
    const Tensor moved = permute(
        reshape(matmul(choose, token_rows), {cache[0], cache[2], heads, size}), {0, 2, 1, 3});
    const Tensor covered = reshape(sum(choose, {1}), {cache[0], 1, cache[2], 1});
    return where(greater(covered, scalar_like(covered, 0.0)), moved, old);
  };
  return {written(in[CacheWrite::keys], in[CacheWrite::k]),
          written(in[CacheWrite::values], in[CacheWrite::v])};
}

bool accepts(const Arg& arg, int input, const NoAttributes&) {
  if (input != 2 && input != 3) return arg.contiguous();
  return arg.strides.back() == 1 || arg.shape().back() <= 1;
}

// In place, as the op is meant to run, it moves only the new tokens. `lower` subtracts outputs that
// overwrite inputs, which leaves the new tokens, read and written.
Cost cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
          const NoAttributes&) {
  const Bytes fresh = inputs[CacheWrite::k].bytes() + inputs[CacheWrite::v].bytes();
  return {.flops = 0.0, .moved = fresh + fresh + outputs[0].bytes() + outputs[1].bytes()};
}

}  // namespace

const Op& cache_write_op() {
  static const TypedOp<NoAttributes> op({
      .name = "cache_write",
      .summary = "writes keys and values of new tokens into a cache",
      .infer = infer,
      .reference = reference,
      .in_place = {{.output = CacheWrite::new_keys, .input = CacheWrite::keys},
                   {.output = CacheWrite::new_values, .input = CacheWrite::values}},
      .accepts = accepts,
      .cpu = bind_cache_write_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_cache_write_cuda),
      .cost = cost,
      .recomputable = false,
  });
  return op;
}

CachedKeysValues cache_write(const Tensor& keys, const Tensor& values, const Tensor& k,
                             const Tensor& v, const Tensor& positions, const Tensor& rows) {
  const auto out = apply(cache_write_op(), {keys, values, k, v, positions, rows}, NoAttributes{});
  return {out[0], out[1]};
}

}  // namespace ebb
