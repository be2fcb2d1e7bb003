#include "ops/quantised_linear/quantised_linear.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>

#include "ebb/error.h"
#include "ebb/ops.h"
#include "ops/cuda_kernels.h"
#include "ops/quantised_linear/levels.h"

namespace ebb {
namespace {

constexpr std::array<std::string_view, 3> kind_names{"int8", "int4", "nf4"};
constexpr std::int64_t most_elements = std::int64_t{1}
                                       << 48;  // keeps sizes in bytes within 64 bits

void check_encoding(const Call& call, const Encoding& e) {
  if (e.block < 16 || e.block > 1024 || !std::has_single_bit(static_cast<std::uint64_t>(e.block)))
    call.fail_value(
        fmt::format("a block must be a power of two from 16 to 1024, but is {}", e.block));
  std::int64_t elements = 0;
  if (e.rows < 0 || e.columns < 0 || __builtin_mul_overflow(e.rows, e.columns, &elements) ||
      elements > most_elements)
    call.fail_value(fmt::format("a matrix of {} × {} cannot be packed", e.rows, e.columns));
}

void require_packed(const Call& call, int input, const Encoding& e) {
  const TensorType& type = call.inputs[static_cast<std::size_t>(input)];
  if (type != e.packed())
    call.fail_shape(fmt::format("a matrix of {} × {} in {} must be {}", e.rows, e.columns,
                                name(e.kind), to_string(e.packed())));
}

std::vector<TensorType> infer_quantise(const Call& call, const Encoding& e) {
  check_encoding(call, e);
  call.require_floating(0);
  if (call.shape(0) != Shape{e.rows, e.columns})
    call.fail_shape(fmt::format("the matrix must have shape ({}, {})", e.rows, e.columns));
  return {e.packed()};
}

std::vector<TensorType> infer_dequantise(const Call& call, const DequantiseAttributes& a) {
  check_encoding(call, a.encoding);
  require_packed(call, 0, a.encoding);
  if (!is_floating(a.dtype))
    call.fail_dtype(
        fmt::format("the result must be floating-point, but {} is asked for", name(a.dtype)));
  return {{{a.encoding.rows, a.encoding.columns}, a.dtype}};
}

std::vector<TensorType> infer_linear(const Call& call, const QuantisedLinearAttributes& a) {
  check_encoding(call, a.encoding);
  call.require_floating(0);
  call.require_rank(0, 2);
  require_packed(call, 1, a.encoding);
  const Shape& x = call.shape(0);
  if (x[1] != a.inner())
    call.fail_shape(fmt::format("the last axis must have size {}, but has {}", a.inner(), x[1]));
  return {{{x[0], a.outer()}, call.dtype(0)}};
}

// A slice of the bytes as float32 values, composed from their bits by arithmetic, which is exact.
Tensor floats_at(const Tensor& packed, std::int64_t at, std::int64_t count) {
  const Tensor bytes =
      cast(reshape(slice(packed, 0, at, at + 4 * count), {count, 4}), f64);  // little-endian
  const auto byte = [&](int i) { return reshape(slice(bytes, 1, i, i + 1), {count}); };
  const auto quotient = [](const Tensor& x, double by) { return cast(cast(x / by, i64), f64); };
  const Tensor sign = quotient(byte(3), 128.0), high = byte(3) - sign * 128.0;
  const Tensor top = quotient(byte(2), 128.0), exponent = high * 2.0 + top;
  const Tensor fraction = (byte(2) - top * 128.0) * 65536.0 + byte(1) * 256.0 + byte(0);
  const Tensor zero = zeros_like(exponent), one = full_like(exponent, 1.0);
  const Tensor normal = greater(exponent, zero);
  const Tensor mantissa = where(normal, fraction + 8388608.0, fraction);
  // Powers of two from a table, since `exp` rounds.
  std::vector<double> powers;
  for (int e = 0; e < 256; ++e) powers.push_back(std::ldexp(1.0, (e == 0 ? 1 : e) - 150));
  const Tensor power =
      reshape(embedding(Tensor::from(powers, {256, 1}), cast(exponent, i64)), {count});
  return mantissa * power * (one - sign * 2.0);
}

// (rows, columns), in float64
Tensor unpacked(const Tensor& packed, const Encoding& e) {
  const bool eight = e.bits() == 8;
  std::vector<double> levels;  // of the elements of each byte
  for (int byte = 0; byte < 256; ++byte) {
    if (eight) {
      levels.push_back(byte - int8_zero);
      continue;
    }
    const auto& table = four_bit_levels(e.kind);
    levels.push_back(static_cast<double>(table[static_cast<std::size_t>(byte % 16)]));
    levels.push_back(static_cast<double>(table[static_cast<std::size_t>(byte / 16)]));
  }
  const std::int64_t blocks = e.blocks_in_row(), row_bytes = e.row_bytes();
  const Tensor codes =
      reshape(cast(slice(packed, 0, 0, e.rows * row_bytes), i64), {e.rows, row_bytes});
  const Tensor values = slice(reshape(embedding(Tensor::from(levels, {256, eight ? 1 : 2}), codes),
                                      {e.rows, row_bytes * (eight ? 1 : 2)}),
                              1, 0, e.columns);
  Tensor scales;
  if (e.scales_in_8_bits) {
    const Tensor offset_and_groups = floats_at(packed, e.offset_at(), 1 + e.groups());
    const std::int64_t whole = e.groups() * Encoding::group_size;
    const Tensor groups =
        slice(reshape(expand(unsqueeze(slice(offset_and_groups, 0, 1, 1 + e.groups()), 1),
                             {e.groups(), Encoding::group_size}),
                      {whole}),
              0, 0, e.scales());
    scales = slice(offset_and_groups, 0, 0, 1) +
             groups * (cast(slice(packed, 0, e.scales_at(), e.scales_at() + e.scales()), f64) -
                       static_cast<double>(scale_zero));
    scales = cast(cast(scales, f32), f64);  // kernels compute scales in float32
  } else {
    scales = floats_at(packed, e.scales_at(), e.scales());
  }
  const Tensor of_elements = slice(
      reshape(expand(unsqueeze(reshape(scales, {e.rows, blocks}), 2), {e.rows, blocks, e.block}),
              {e.rows, blocks * e.block}),
      1, 0, e.columns);
  return values * of_elements;
}

std::vector<Tensor> reference_dequantise(std::span<const Tensor> in,
                                         const DequantiseAttributes& a) {
  return {cast(unpacked(in[0], a.encoding), a.dtype)};
}

std::vector<Tensor> reference_linear(std::span<const Tensor> in,
                                     const QuantisedLinearAttributes& a) {
  const Tensor weight = cast(unpacked(in[1], a.encoding), in[0].dtype());
  return {matmul(in[0], weight, Transpose::no, a.back ? Transpose::no : Transpose::yes)};
}

std::vector<Tensor> gradient_linear(const GradientCall& call, const QuantisedLinearAttributes& a) {
  QuantisedLinearAttributes back = a;
  back.back = !a.back;
  return {apply1(quantised_linear_op(), {call.grad(), call.input(1)}, back), Tensor{}};
}

Cost cost_linear(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
                 const QuantisedLinearAttributes& a) {
  Cost result = default_cost(inputs, outputs);
  result.work = Work::product;
  // Unpacking an element takes about as long as some additions.
  constexpr double unpacking = 8.0;
  const double elements =
      static_cast<double>(a.encoding.rows) * static_cast<double>(a.encoding.columns);
  result.flops = elements * (2.0 * static_cast<double>(inputs[0].shape[0]) + unpacking);
  return result;
}

}  // namespace

std::string_view name(LowBits kind) { return kind_names[static_cast<std::size_t>(kind)]; }

LowBits low_bits_by_name(std::string_view name) {
  for (std::size_t i = 0; i < kind_names.size(); ++i)
    if (kind_names[i] == name) return static_cast<LowBits>(i);
  throw ValueError(fmt::format("weights in few bits are one of {}, but \"{}\" came",
                               fmt::join(kind_names, ", "), name));
}

Encoding Encoding::usual(LowBits kind, std::int64_t rows, std::int64_t columns) {
  switch (kind) {
    case LowBits::int8:
      return {kind, 128, false, rows, columns};
    case LowBits::int4:
      return {kind, 32, true, rows, columns};
    case LowBits::nf4:
      break;
  }
  return {kind, 64, true, rows, columns};
}

const Op& quantise_op() {
  static const TypedOp<Encoding> op({
      .name = "quantise",
      .summary = "a matrix in 8 or 4 bits: codes and scales as bytes",
      .infer = infer_quantise,
      .gradient = zero_gradient<Encoding>,
      .cpu = bind_quantise_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_quantise_cuda),
      .operations = 20.0,
  });
  return op;
}

const Op& dequantise_op() {
  static const TypedOp<DequantiseAttributes> op({
      .name = "dequantise",
      .summary = "a matrix from codes and scales in 8 or 4 bits",
      .infer = infer_dequantise,
      .gradient = zero_gradient<DequantiseAttributes>,
      .reference = reference_dequantise,
      .cpu = bind_dequantise_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_dequantise_cuda),
      .operations = 4.0,
  });
  return op;
}

const Op& quantised_linear_op() {
  static const TypedOp<QuantisedLinearAttributes> op({
      .name = "quantised_linear",
      .summary = "products with a matrix in 8 or 4 bits, read as it is stored",
      .infer = infer_linear,
      .gradient = gradient_linear,
      .saved = {.inputs = {1}, .outputs = {}},
      .reference = reference_linear,
      .cpu = bind_quantised_linear_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_quantised_linear_cuda),
      .cost = cost_linear,
      .narrowing = Narrowing::sought,
  });
  return op;
}

Tensor quantise(const Tensor& matrix, const Encoding& encoding) {
  return apply1(quantise_op(), {matrix}, encoding);
}

Tensor dequantise(const Tensor& packed, const Encoding& encoding, DType dtype) {
  return apply1(dequantise_op(), {packed}, DequantiseAttributes{encoding, dtype});
}

Tensor quantised_linear(const Tensor& x, const Tensor& packed, const Encoding& encoding,
                        const Tensor& bias) {
  const QuantisedLinearAttributes attributes{encoding};
  Tensor y = x;
  if (!x || x.rank() == 2) {
    y = apply1(quantised_linear_op(), {x, packed}, attributes);
  } else {
    if (x.rank() == 0) call_on(quantised_linear_op(), x).fail_shape("x must have an axis");
    Shape shape = x.shape();
    y = apply1(quantised_linear_op(), {reshape(x, {-1, shape.back()}), packed}, attributes);
    shape[shape.rank() - 1] = encoding.rows;
    y = reshape(y, shape);
  }
  return bias ? y + bias : y;
}

}  // namespace ebb
