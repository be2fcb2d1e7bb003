#include <gtest/gtest.h>

#include "support/op_check.h"

namespace ebb::test {
namespace {

Sample on(const char* name, Shape shape, std::function<Tensor(const Tensor&)> f) {
  return {name, {SampleInput::real(shape)}, [f](const auto& x) { return std::vector{f(x[0])}; }};
}

TEST(View, Gradients) {
  check(on("reshape", {2, 6}, [](const Tensor& x) { return square(reshape(x, {3, -1})); }));
  check(on("permute", {2, 3, 4}, [](const Tensor& x) { return square(permute(x, {2, 0, 1})); }));
  check(on("transpose", {2, 3}, [](const Tensor& x) { return exp(transpose(x)); }));
  check(on("expand", {3, 1}, [](const Tensor& x) { return square(expand(x, {2, 3, 4})); }));
  check(on("squeeze", {3, 1, 2},
           [](const Tensor& x) { return square(squeeze(unsqueeze(x, 0), 2)); }));
  check(on("slice", {4, 7}, [](const Tensor& x) { return square(slice(x, 1, 1, 6, 2)); }));
  check(on("slice of a slice", {4, 7},
           [](const Tensor& x) { return square(slice(slice(x, 1, 1, 6, 2), 0, 1, 3)); }));
  check(on("reshape of a transpose", {4, 6}, [](const Tensor& x) {
    return square(reshape(transpose(x), {3, 8}));
  }));
  check(on("identity", {4, 6}, [](const Tensor& x) { return contiguous(transpose(x)); }));
  check({"split", {SampleInput::real({3, 6})}, [](const auto& x) {
           return split(square(x[0]), 1, {1, 2, 3});
         }});
  check(
      on("one part of a split", {3, 6}, [](const Tensor& x) { return square(chunk(x, 1, 3)[1]); }));
}

TEST(View, NeedsNoInstruction) {
  const Tensor x = Tensor::from(std::vector<float>(24, 2.0f), {2, 3, 4});
  const Program program(
      {.inputs = {},
       .outputs = {exp(slice(reshape(permute(x, {1, 0, 2}), {3, 2, 2, 2}), 1, 0, 1))},
       .updates = {}});
  EXPECT_EQ(program.plan().instructions.size(), 1u);
}

// Reshapes of strided tensors: a view if strides can express it, otherwise a copy; the values are
// the same.
TEST(View, ReshapeOfAnyLayoutKeepsOrder) {
  std::vector<double> values(48);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
  const Tensor x = Tensor::from(values, {2, 3, 8});
  for (const Tensor& y :
       {x, transpose(x, 0, 1), transpose(x), slice(x, 2, 0, 8, 2), slice(x, 1, 1, 3),
        permute(x, {2, 0, 1}), expand(unsqueeze(slice(x, 0, 0, 1), 1), {1, 2, 3, 8})}) {
    const auto expected = contiguous(y).to_vector<double>();
    const std::int64_t n = y.shape().elements();
    for (const Shape& shape : {Shape{n}, Shape{2, n / 2}, Shape{n / 2, 2}, Shape{4, -1},
                               Shape{2, 1, n / 4, 2}, Shape{n / 8, 2, 1, 4}})
      EXPECT_EQ(reshape(y, shape).to_vector<double>(), expected)
          << to_string(y.shape()) << " to " << to_string(shape);
  }
}

TEST(View, StopGradient) {
  const Tensor x = Tensor::from(std::vector<double>{2.0}, {});
  EXPECT_EQ(grad(x * stop_gradient(x * x), {x})[0].item(), 4.0);
  check({"stop_gradient", {SampleInput::real({3})}, [](const auto& t) {
           return std::vector{t[0] * stop_gradient(ones({3}, t[0].dtype()))};
         }});
}

TEST(View, Errors) {
  expect_error([] { reshape(zeros({2, 3}), {4, 2}); }, {"[reshape]", "6 elements", "(4, 2)"});
  expect_error([] { reshape(zeros({2, 3}), {-1, -1}); }, {"[reshape]", "at most one -1"});
  expect_error([] { reshape(zeros({2, 3}), {-1, 4}); }, {"[reshape]", "(-1, 4)"});
  expect_error([] { permute(zeros({2, 3}), {0, 0}); }, {"[permute]", "(0, 0)"});
  expect_error([] { permute(zeros({2, 3}), {0, 2}); }, {"[permute]", "axis 2"});
  expect_error([] { expand(zeros({2, 3}), {2, 4}); }, {"[expand]", "(2, 4)", "(2, 3)"});
  expect_error([] { slice(zeros({2, 3}), 1, 1, 5); }, {"[slice]", "[1, 5)", "size 3"});
  expect_error([] { slice(zeros({2, 3}), 1, 0, 3, 0); }, {"[slice]", "step"});
  expect_error([] { split(zeros({2, 3}), 1, {1, 1}); }, {"[split]", "add up to 2"});
  expect_error([] { chunk(zeros({2, 3}), 1, 2); }, {"[split]", "2 equal parts"});
  expect_error([] { squeeze(zeros({2, 3}), 1); }, {"squeeze", "size 1", "3"});
  expect_error([] { unsqueeze(zeros({2}), 3); }, {"axis 3"});
  expect_error([] { transpose(zeros({2}), 0, 1); }, {"[permute]", "axis 1"});
}

}  // namespace
}  // namespace ebb::test
