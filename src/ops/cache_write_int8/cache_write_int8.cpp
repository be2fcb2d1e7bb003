#include "ops/cache_write_int8/cache_write_int8.h"

#include <fmt/core.h>

#include "ebb/decode.h"
#include "ebb/ops.h"

namespace ebb {
namespace {

using In = CacheWriteInt8;

std::vector<TensorType> infer_int8(const Call& call, const NoAttributes&) {
  require_int8_caches(call, In::keys);
  for (const int i : {In::k, In::v}) {
    call.require_floating(i);
    call.require_rank(i, 4);
    call.require_same_dtype(In::k, i);
  }
  const Shape &keys = call.shape(In::keys), &values = call.shape(In::values),
              &k = call.shape(In::k), &v = call.shape(In::v);
  if (k[0] != v[0] || k[1] != v[1] || k[2] != v[2])
    call.fail_shape("new keys and values must agree in sequences, heads and tokens");
  if (keys[1] != k[1] || keys[3] != k[3] || values[3] != v[3])
    call.fail_shape("new keys and values must have the heads and head sizes of the caches");
  require_tokens(call, In::positions, k[0], k[2]);
  return {call.inputs[In::keys], call.inputs[In::key_scales], call.inputs[In::values],
          call.inputs[In::value_scales]};
}

bool accepts_int8(const Arg& arg, int input, const NoAttributes&) {
  if (input != In::k && input != In::v) return arg.contiguous();
  return arg.strides.back() == 1 || arg.shape().back() <= 1;
}

// In place, as the op is meant to run, it moves only the new tokens. `lower` subtracts outputs that
// overwrite inputs, which leaves the new tokens, read and written.
Cost cost_int8(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
               const NoAttributes&) {
  const Bytes fresh = inputs[In::k].bytes() + inputs[In::v].bytes();
  Cost result{.flops = 4.0 * static_cast<double>(fresh.count), .moved = fresh + fresh};
  for (const TensorType& cache : outputs) result.moved += cache.bytes();
  return result;
}

}  // namespace

void require_int8_caches(const Call& call, int first) {
  const auto type = [&](int i) -> const TensorType& {
    return call.inputs[static_cast<std::size_t>(first + i)];
  };
  for (const int i : {0, 2}) {
    call.require_rank(first + i, 4);
    const Shape& s = call.shape(first + i);
    const TensorType codes{s, u8}, scales{{s[0], s[1], s[2], int8_cache_blocks(s[3])}, f32};
    if (type(i) != codes)
      call.fail_dtype(fmt::format("codes of a cache must be {}, but are {}", to_string(codes),
                                  to_string(type(i))));
    if (type(i + 1) != scales)
      call.fail_shape(fmt::format("scales of a cache must be {}, but are {}", to_string(scales),
                                  to_string(type(i + 1))));
  }
  const Shape &keys = call.shape(first), &values = call.shape(first + 2);
  if (keys[0] != values[0] || keys[1] != values[1] || keys[2] != values[2])
    call.fail_shape("the caches of keys and values must agree in rows, heads and tokens");
}

void require_tokens(const Call& call, int first, std::int64_t batches, std::int64_t tokens) {
  const TensorType positions{{batches, tokens}, i32}, rows{{batches}, i32};
  const TensorType &given = call.inputs[static_cast<std::size_t>(first)],
                   &given_rows = call.inputs[static_cast<std::size_t>(first) + 1];
  if (given != positions)
    call.fail_shape(
        fmt::format("positions must be {}, but are {}", to_string(positions), to_string(given)));
  if (given_rows != rows)
    call.fail_shape(
        fmt::format("rows must be {}, but are {}", to_string(rows), to_string(given_rows)));
}

const Op& cache_write_int8_op() {
  static const TypedOp<NoAttributes> op({
      .name = "cache_write_int8",
      .summary = "writes keys and values of new tokens into a cache in 8 bits",
      .infer = infer_int8,
      .gradient = zero_gradient<NoAttributes>,
      .in_place = {{.output = In::keys, .input = In::keys},
                   {.output = In::key_scales, .input = In::key_scales},
                   {.output = In::values, .input = In::values},
                   {.output = In::value_scales, .input = In::value_scales}},
      .accepts = accepts_int8,
      .cpu = bind_cache_write_int8_cpu,
      .cost = cost_int8,
      .recomputable = false,
  });
  return op;
}

Int8KeysValues cache_write(const Int8KeysValues& cache, const Tensor& k, const Tensor& v,
                           const Tensor& positions, const Tensor& rows) {
  const auto out = apply(cache_write_int8_op(),
                         {cache.keys.codes, cache.keys.scales, cache.values.codes,
                          cache.values.scales, k, v, positions, rows},
                         NoAttributes{});
  return {{out[0], out[1]}, {out[2], out[3]}};
}

}  // namespace ebb
