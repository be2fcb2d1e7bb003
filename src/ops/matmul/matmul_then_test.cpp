#include "ops/matmul/matmul_then.h"

#include <gtest/gtest.h>

#include "support/op_check.h"

namespace ebb::test {
namespace {

Sample sample(const std::string& name, std::vector<SampleInput> inputs,
              const MatmulThenAttributes& attributes) {
  Sample result{name, std::move(inputs), [=](const auto& x) {
                  return std::vector{apply1(matmul_then_op(), x, attributes)};
                }};
  return result;
}

SampleInput real(const Shape& shape) { return SampleInput::real(shape); }

TEST(MatmulThen, AddsToTheProduct) {
  constexpr AfterProduct add = AfterProduct::add;
  check(sample("plain", {real({3, 4}), real({4, 5}), real({3, 5})}, {{}, false, add}));
  check(sample("bias", {real({3, 4}), real({4, 5}), real({5}), real({3, 5})}, {{}, true, add}));
  check(sample("transposed", {real({4, 3}), real({8, 4}), real({8}), real({3, 8})},
               {{.transpose_a = true, .transpose_b = true}, true, add}));
  check(sample("batch", {real({2, 3, 4}), real({2, 4, 2}), real({2, 3, 2})}, {{}, false, add}));
  check(sample("broadcast batches", {real({2, 1, 3, 4}), real({3, 4, 2}), real({2, 3, 3, 2})},
               {{}, false, add}));
}

TEST(MatmulThen, TimesTheSlopeOfGelu) {
  constexpr AfterProduct slope = AfterProduct::gelu_tanh_grad;
  check(sample("slope", {real({3, 4}), real({4, 8}), real({3, 8})}, {{}, false, slope}));
  check(
      sample("rows of odd length", {real({3, 4}), real({4, 5}), real({3, 5})}, {{}, false, slope}));
  check(sample("slope, transposed", {real({16, 8}), real({24, 8}), real({16, 24})},
               {{.transpose_a = false, .transpose_b = true}, false, slope}));
  check(sample("slope, batch", {real({2, 3, 4}), real({2, 4, 8}), real({2, 3, 8})},
               {{}, false, slope}));
  check(sample("slope after a bias", {real({3, 4}), real({4, 8}), real({8}), real({3, 8})},
               {{}, true, slope}));
}

TEST(MatmulThen, EmptySizes) {
  const Tensor y = eval(arange(6));
  const auto run = [&](AfterProduct function) {
    return apply1(matmul_then_op(), {zeros({2, 0}), zeros({0, 3}), reshape(cast(y, f32), {2, 3})},
                  MatmulThenAttributes{{}, false, function})
        .to_vector<float>();
  };
  EXPECT_EQ(run(AfterProduct::add), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(run(AfterProduct::gelu_tanh_grad), std::vector<float>(6, 0.0f));
}

TEST(MatmulThen, Errors) {
  const auto call = [](std::vector<Tensor> inputs, bool bias) {
    apply1(matmul_then_op(), std::move(inputs), MatmulThenAttributes{{}, bias, {}});
  };
  expect_error(
      [&] {
        call({zeros({2, 3}), zeros({3, 4}), zeros({4})}, false);
      },
      {"[matmul_then]", "y must be", "(2, 4)", "(4,)"});
  expect_error(
      [&] {
        call({zeros({2, 3}), zeros({3, 4}), zeros({2, 4})}, true);
      },
      {"[matmul_then]", "4 inputs", "3 came"});
  expect_error(
      [&] {
        call({zeros({2, 3}), zeros({2, 4}), zeros({2, 4})}, false);
      },
      {"[matmul_then]", "inner sizes", "3 and 2"});
}

}  // namespace
}  // namespace ebb::test
