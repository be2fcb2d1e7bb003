// Elementwise rows without inputs: a value that depends only on the element's index. Fusion copies
// them into their users, so a constant, a dropout mask or a random tensor need not exist in memory.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ebb/node.h"
#include "ebb/ops.h"
#include "ops/cuda_kernels.h"
#include "ops/pointwise/convert.h"
#include "ops/pointwise/philox_words.h"
#include "ops/pointwise/pointwise.h"
#include "ops/pointwise/tiles.h"

namespace ebb {
namespace {

template <class T>
void full_tile(const TileArgs& args) {
  std::fill_n(static_cast<T*>(args.out), args.count, convert<T>(args.immediates->a));
}

template <class T>
void arange_tile(const TileArgs& args) {
  T* out = static_cast<T*>(args.out);
  for (std::int64_t i = 0; i < args.count; ++i) out[i] = static_cast<T>(args.begin + i);
}

// Calls body(offset, words, k) for every element: element i has word i % 4 of counter i / 4, which
// is words[k], and k is as even or odd as i.
template <class Body>
void for_each_word(const TileArgs& args, const Body& body) {
  const Philox philox(args.random, args.immediates->key);
  const std::int64_t end = args.begin + args.count;
  std::uint32_t words[4 * philox_counters];
  for (std::int64_t first = args.begin / 4 * 4; first < end; first += 4 * philox_counters) {
    philox_words(philox, static_cast<std::uint64_t>(first / 4), words);
    const std::int64_t stop = std::min(end - first, 4 * philox_counters);
    for (std::int64_t k = std::max<std::int64_t>(args.begin - first, 0); k < stop; ++k)
      body(first + k - args.begin, words, k);
  }
}

template <class T>
void uniform_tile(const TileArgs& args) {
  T* out = static_cast<T*>(args.out);
  const T low = static_cast<T>(args.immediates->a),
          width = static_cast<T>(args.immediates->b - args.immediates->a);
  for_each_word(args, [&](std::int64_t i, const std::uint32_t* words, std::int64_t k) {
    out[i] = low + width * static_cast<T>(uniform_from_bits(words[k]));
  });
}

// Box-Muller on the two pairs of words of a counter: element i takes the cosine or sine branch of
// its pair.
template <class T>
void normal_tile(const TileArgs& args) {
  T* out = static_cast<T*>(args.out);
  for_each_word(args, [&](std::int64_t i, const std::uint32_t* words, std::int64_t k) {
    const std::uint32_t first = words[k / 2 * 2], second = words[k / 2 * 2 + 1];
    const double radius = std::sqrt(-2.0 * std::log((first + 0.5) * 0x1p-32));  // never log 0
    const double angle = 2.0 * std::numbers::pi * (second * 0x1p-32);
    const double z = radius * (k % 2 == 0 ? std::cos(angle) : std::sin(angle));
    out[i] = static_cast<T>(args.immediates->a + args.immediates->b * z);
  });
}

// 0 with probability a, else b.
template <class T>
void dropout_mask_tile(const TileArgs& args) {
  T* out = static_cast<T*>(args.out);
  const float p = static_cast<float>(args.immediates->a);
  const T keep = static_cast<T>(args.immediates->b);
  for_each_word(args, [&](std::int64_t i, const std::uint32_t* words, std::int64_t k) {
    out[i] = uniform_from_bits(words[k]) < p ? T(0) : keep;
  });
}

const PointwiseRow full_row{"full",
                            0,
                            {full_tile<double>, full_tile<float>, full_tile<std::int64_t>,
                             full_tile<std::int32_t>, full_tile<std::uint8_t>},
                            "convert<R>(n.a)"};
const PointwiseRow arange_row{"arange",
                              0,
                              {arange_tile<double>, arange_tile<float>, arange_tile<std::int64_t>,
                               arange_tile<std::int32_t>, nullptr},
                              "R(index)"};
const PointwiseRow uniform_row{"random_uniform",
                               0,
                               {uniform_tile<double>, uniform_tile<float>},
                               "T(n.a) + T(n.b - n.a) * T(uniform(random, n.key, index))",
                               13.0};
const PointwiseRow normal_row{"random_normal",
                              0,
                              {normal_tile<double>, normal_tile<float>},
                              "T(n.a + n.b * normal(random, n.key, index))",
                              350.0};
const PointwiseRow dropout_row{"dropout_mask",
                               0,
                               {dropout_mask_tile<double>, dropout_mask_tile<float>},
                               "uniform(random, n.key, index) < float(n.a) ? T(0) : T(n.b)",
                               14.0};

std::vector<TensorType> infer_generator(const Call& call, const GeneratorAttributes& a) {
  for (std::int64_t extent : a.shape)
    if (extent < 0)
      call.fail_shape(
          fmt::format("sizes must not be negative, but the shape is {}", to_string(a.shape)));
  if (!call.op.pointwise()->tiles[static_cast<std::size_t>(tile_type(a.dtype))])
    call.fail_dtype(fmt::format("is not defined for {}", name(a.dtype)));
  return {{a.shape, a.dtype}};
}

FusedAttributes single(const KernelRequest& request, const GeneratorAttributes& a) {
  return {.input_dtypes = {},
          .code = {{request.op.pointwise(), {}, a.dtype, a.numbers}},
          .shape = a.shape};
}

OpSpec<GeneratorAttributes> generator(const PointwiseRow& row, std::string_view summary) {
  OpSpec<GeneratorAttributes> spec{.name = row.name, .summary = summary};
  spec.infer = infer_generator;
  spec.gradient = zero_gradient;
  spec.cpu = [](const KernelRequest& r, const GeneratorAttributes& a) {
    return bind_pointwise(r, single(r, a));
  };
  spec.cuda = EBB_CUDA_KERNEL([](const KernelRequest& r, const GeneratorAttributes& a) {
    return bind_pointwise_cuda(r, single(r, a));
  });
  spec.operations = row.work;
  spec.pointwise = &row;
  return spec;
}

}  // namespace

const Op& full_op() {
  static const TypedOp<GeneratorAttributes> op(generator(full_row, "one value everywhere"));
  return op;
}
const Op& arange_op() {
  static const TypedOp<GeneratorAttributes> op(generator(arange_row, "0, 1, 2, ..."));
  return op;
}
const Op& random_uniform_op() {
  static const TypedOp<GeneratorAttributes> op(
      generator(uniform_row, "uniform numbers in [low, high)"));
  return op;
}
const Op& random_normal_op() {
  static const TypedOp<GeneratorAttributes> op(generator(normal_row, "normal numbers"));
  return op;
}
const Op& dropout_mask_op() {
  static const TypedOp<GeneratorAttributes> op(
      generator(dropout_row, "0 with probability p, else 1 / (1 - p)"));
  return op;
}

Tensor full(const Shape& shape, double value, DType dtype, Device device) {
  if (is_integer(dtype) ? !holds(dtype, value) : overflows(dtype, value))
    Call{full_op(), {}, device, current_path()}.fail_value(
        fmt::format("{} cannot hold {}", name(dtype), value));
  const double stored = dtype == b8 ? (value != 0.0 ? 1.0 : 0.0) : value;
  return create(full_op(), device,
                GeneratorAttributes{shape, dtype, {.a = stored, .b = 0.0, .key = {}}});
}
Tensor zeros(const Shape& shape, DType dtype, Device device) {
  return full(shape, 0.0, dtype, device);
}
Tensor ones(const Shape& shape, DType dtype, Device device) {
  return full(shape, 1.0, dtype, device);
}
Tensor zeros_like(const Tensor& x) { return full_like(x, 0.0); }
Tensor full_like(const Tensor& x, double value) {
  return full(x.shape(), value, x.dtype(), x.device());
}
Tensor scalar_like(const Tensor& x, double value) { return full({}, value, x.dtype(), x.device()); }

Tensor arange(std::int64_t count, DType dtype, Device device) {
  return create(arange_op(), device, GeneratorAttributes{{count}, dtype, {}});
}

Tensor random_uniform(const Shape& shape, double low, double high, DType dtype, Device device,
                      std::optional<RandomKey> key) {
  return create(random_uniform_op(), device,
                GeneratorAttributes{shape, dtype, {low, high, key ? *key : next_random_key()}});
}

Tensor random_normal(const Shape& shape, double mean, double stddev, DType dtype, Device device,
                     std::optional<RandomKey> key) {
  return create(random_normal_op(), device,
                GeneratorAttributes{shape, dtype, {mean, stddev, key ? *key : next_random_key()}});
}

Tensor dropout_mask(const Shape& shape, double p, DType dtype, Device device, RandomKey key) {
  return create(dropout_mask_op(), device,
                GeneratorAttributes{shape, dtype, {p, 1.0 / (1.0 - p), key}});
}

Tensor dropout(const Tensor& x, double p, std::optional<RandomKey> key) {
  if (!(p >= 0.0 && p < 1.0))
    call_on(dropout_mask_op(), x)
        .fail_value(fmt::format("the probability must be in [0, 1), but is {}", p));
  if (p == 0.0) return x;
  return x * dropout_mask(x.shape(), p, x.dtype(), x.device(), key ? *key : next_random_key());
}

}  // namespace ebb
