#include "ops/pairs/pairs.h"

#include <fmt/core.h>

#include <bit>

#include "ebb/ops.h"

namespace ebb {
namespace {

void require_fours(const Call& call, std::int64_t columns) {
  if (columns % 4 != 0)
    call.fail_shape(fmt::format("{} columns do not divide into fours", columns));
}

// Checks that input `input` holds the positions of a matrix of that size.
void require_positions(const Call& call, int input, std::int64_t rows, std::int64_t columns) {
  const TensorType expected = positions_type(rows, columns);
  if (call.inputs[static_cast<std::size_t>(input)] != expected)
    call.fail_shape(fmt::format("positions of a matrix of {} × {} must be {}", rows, columns,
                                to_string(expected)));
}

std::vector<TensorType> infer_choose(const Call& call, const NoAttributes&) {
  call.require_floating(0);
  call.require_rank(0, 2);
  require_fours(call, call.shape(0)[1]);
  return {positions_type(call.shape(0)[0], call.shape(0)[1])};
}

std::vector<TensorType> infer_take(const Call& call, const NoAttributes&) {
  call.require_floating(0);
  call.require_rank(0, 2);
  const Shape& matrix = call.shape(0);
  require_fours(call, matrix[1]);
  require_positions(call, 1, matrix[0], matrix[1]);
  return {{{matrix[0], matrix[1] / 2}, call.dtype(0)}};
}

// The size of the matrix whose values are input `input`.
Shape matrix_of(const Call& call, int input) {
  call.require_floating(input);
  call.require_rank(input, 2);
  const Shape& values = call.shape(input);
  require_fours(call, 2 * values[1]);
  return {values[0], 2 * values[1]};
}

std::vector<TensorType> infer_spread(const Call& call, const NoAttributes&) {
  const Shape matrix = matrix_of(call, 0);
  require_positions(call, 1, matrix[0], matrix[1]);
  return {{matrix, call.dtype(0)}};
}

std::vector<TensorType> infer_linear(const Call& call, const PairLinearAttributes& a) {
  call.require_floating(0);
  call.require_rank(0, 2);
  call.require_same_dtype(0, 1);
  const Shape matrix = matrix_of(call, 1);
  require_positions(call, 2, matrix[0], matrix[1]);
  const std::int64_t inner = matrix[a.back ? 0 : 1], outer = matrix[a.back ? 1 : 0];
  if (call.shape(0)[1] != inner)
    call.fail_shape(
        fmt::format("the last axis must have size {}, but has {}", inner, call.shape(0)[1]));
  return {{{call.shape(0)[0], outer}, call.dtype(0)}};
}

// (rows, fours, 4): whether a column is the first kept one of its four, or the second.
Tensor is_kept(const Tensor& positions, std::int64_t columns, bool second) {
  std::vector<double> table;  // of each byte
  for (unsigned byte = 0; byte < 256; ++byte)
    for (unsigned column = 0; column < 8; ++column) {
      const unsigned four = byte >> (column / 4 * 4) & 15u, bit = 1u << column % 4;
      const bool later = std::popcount(four & (bit - 1)) % 2 != 0;
      table.push_back((four & bit) != 0 && later == second ? 1.0 : 0.0);
    }
  const std::int64_t rows = positions.shape()[0], bytes = positions.shape()[1];
  const Tensor bits = slice(
      reshape(embedding(Tensor::from(table, {256, 8}), cast(positions, i64)), {rows, 8 * bytes}), 1,
      0, columns);
  const Tensor fours = reshape(bits, {rows, columns / 4, 4});
  return greater(fours, zeros_like(fours));
}

std::vector<Tensor> reference_take(std::span<const Tensor> in, const NoAttributes&) {
  const Shape shape = in[0].shape();
  const Tensor fours = reshape(in[0], {shape[0], shape[1] / 4, 4});
  const auto kept = [&](bool second) {
    return unsqueeze(sum(where(is_kept(in[1], shape[1], second), fours, zeros_like(fours)), {2}),
                     2);
  };
  return {reshape(concat({kept(false), kept(true)}, 2), {shape[0], shape[1] / 2})};
}

Tensor spread(const Tensor& values, const Tensor& positions) {
  const std::int64_t rows = values.shape()[0], columns = 2 * values.shape()[1];
  const Shape fours{rows, columns / 4, 4};
  const Tensor pairs = reshape(values, {rows, columns / 4, 2});
  const auto wide = [&](int i) { return expand(slice(pairs, 2, i, i + 1), fours); };
  const Tensor first = wide(0);
  return reshape(where(is_kept(positions, columns, false), first,
                       where(is_kept(positions, columns, true), wide(1), zeros_like(first))),
                 {rows, columns});
}

std::vector<Tensor> reference_spread(std::span<const Tensor> in, const NoAttributes&) {
  return {spread(in[0], in[1])};
}

std::vector<Tensor> reference_linear(std::span<const Tensor> in, const PairLinearAttributes& a) {
  return {
      matmul(in[0], spread(in[1], in[2]), Transpose::no, a.back ? Transpose::no : Transpose::yes)};
}

std::vector<Tensor> gradient_take(const GradientCall& call, const NoAttributes&) {
  return {spread_pairs(call.grad(), call.input(1)), {}};
}
std::vector<Tensor> gradient_spread(const GradientCall& call, const NoAttributes&) {
  return {take_pairs(call.grad(), call.input(1)), {}};
}

std::vector<Tensor> gradient_linear(const GradientCall& call, const PairLinearAttributes& a) {
  Tensor x, values;
  if (call.needs(0))
    x = apply1(pair_linear_op(), {call.grad(), call.input(1), call.input(2)},
               PairLinearAttributes{!a.back});
  if (call.needs(1)) {
    // The gradient of W (rows, columns).
    const Tensor& rows = a.back ? call.input(0) : call.grad();
    const Tensor& columns = a.back ? call.grad() : call.input(0);
    values = take_pairs(matmul(rows, columns, Transpose::yes), call.input(2));
  }
  return {x, values, {}};
}

Cost cost_linear(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
                 const PairLinearAttributes&) {
  Cost result = default_cost(inputs, outputs);
  result.work = Work::product;
  // Counts the products of the whole matrix, and unpacking it.
  result.flops = 4.0 * static_cast<double>(inputs[1].shape.elements()) *
                 static_cast<double>(inputs[0].shape[0] + 2);
  return result;
}

}  // namespace

TensorType positions_type(std::int64_t rows, std::int64_t columns) {
  return {{rows, (columns + 7) / 8}, u8};
}

const Op& choose_pairs_op() {
  static const TypedOp<NoAttributes> op({
      .name = "choose_pairs",
      .summary = "of every four neighbours the positions of the two farthest from zero",
      .infer = infer_choose,
      .gradient = zero_gradient<NoAttributes>,
      .cpu = bind_choose_pairs_cpu,
      .operations = 4.0,
  });
  return op;
}

const Op& take_pairs_op() {
  static const TypedOp<NoAttributes> op({
      .name = "take_pairs",
      .summary = "the kept values of a matrix of the pattern 2:4",
      .infer = infer_take,
      .gradient = gradient_take,
      .saved = {.inputs = {1}, .outputs = {}},
      .reference = reference_take,
      .cpu = bind_take_pairs_cpu,
  });
  return op;
}

const Op& spread_pairs_op() {
  static const TypedOp<NoAttributes> op({
      .name = "spread_pairs",
      .summary = "a matrix of the pattern 2:4 from its kept values",
      .infer = infer_spread,
      .gradient = gradient_spread,
      .saved = {.inputs = {1}, .outputs = {}},
      .reference = reference_spread,
      .cpu = bind_spread_pairs_cpu,
  });
  return op;
}

const Op& pair_linear_op() {
  static const TypedOp<PairLinearAttributes> op({
      .name = "pair_linear",
      .summary = "products with a matrix of the pattern 2:4, read as it is stored",
      .infer = infer_linear,
      .gradient = gradient_linear,
      .saved = {.inputs = {0, 1, 2}, .outputs = {}},
      .reference = reference_linear,
      .cpu = bind_pair_linear_cpu,
      .cost = cost_linear,
      .narrowing = Narrowing::sought,
  });
  return op;
}

Tensor choose_pairs(const Tensor& matrix) {
  return apply1(choose_pairs_op(), {matrix}, NoAttributes{});
}
Tensor take_pairs(const Tensor& matrix, const Tensor& positions) {
  return apply1(take_pairs_op(), {matrix, positions}, NoAttributes{});
}
Tensor spread_pairs(const Tensor& values, const Tensor& positions) {
  return apply1(spread_pairs_op(), {values, positions}, NoAttributes{});
}

Tensor pair_linear(const Tensor& x, const Tensor& values, const Tensor& positions,
                   const Tensor& bias) {
  Tensor y;
  if (!x || x.rank() == 2) {
    y = apply1(pair_linear_op(), {x, values, positions}, PairLinearAttributes{});
  } else {
    if (x.rank() == 0) call_on(pair_linear_op(), x).fail_shape("x must have an axis");
    Shape shape = x.shape();
    y = apply1(pair_linear_op(), {reshape(x, {-1, shape.back()}), values, positions},
               PairLinearAttributes{});
    shape[shape.rank() - 1] = y.shape()[1];
    y = reshape(y, shape);
  }
  return bias ? y + bias : y;
}

}  // namespace ebb
