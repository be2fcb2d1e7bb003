#include "ops/cross_entropy/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/op_check.h"

namespace ebb::test {
namespace {

SampleInput targets_of(Shape shape, std::vector<double> values, DType dtype = i64) {
  SampleInput input = SampleInput::index(shape, 0, dtype);
  input.values = std::move(values);
  return input;
}

Sample sample(const char* name, Shape logits, SampleInput targets, CrossEntropyOptions options) {
  return {name, {SampleInput::real(logits, -4.0, 4.0), std::move(targets)}, [=](const auto& x) {
            return std::vector{cross_entropy(x[0], x[1], options)};
          }};
}

TEST(CrossEntropy, Gradients) {
  for (Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum})
    for (double smoothing : {0.0, 0.2}) {
      check(sample("rows", {4, 7}, targets_of({4}, {0, 6, 3, 3}),
                   {.reduction = reduction, .label_smoothing = smoothing}));
      check(sample("some ignored", {2, 3, 5}, targets_of({2, 3}, {4, -100, 1, 0, -100, 2}, i32),
                   {.reduction = reduction, .label_smoothing = smoothing}));
    }
  check(sample("one row, a class to ignore", {5}, targets_of({}, {4}), {.ignore_index = 0}));
  check(sample("several tiles", {2, 2500}, targets_of({2}, {17, 2499}), {.label_smoothing = 0.1}));
}

TEST(CrossEntropy, GradientThroughTheLogsumexp) {
  check({"both outputs",
         {SampleInput::real({3, 5}), targets_of({3}, {1, -100, 4})},
         [](const auto& x) {
           const auto outputs = apply(cross_entropy_op(), {x[0], x[1]}, CrossEntropyAttributes{});
           return std::vector{outputs[0], cast(outputs[1], x[0].dtype())};
         }});
}

// torch.nn.functional.cross_entropy on the same numbers in float64.
TEST(CrossEntropy, AgreesWithPyTorch) {
  std::vector<double> values;
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 5; ++j) values.push_back((7 * i + 3 * j) % 11 * 0.5 - 2.0);
  const Tensor x = Tensor::from(values, {4, 5}),
               t = Tensor::from(std::vector<std::int64_t>{1, -100, 4, 0}, {4});
  const struct {
    double smoothing;
    std::vector<double> rows;
    double mean;
    std::vector<double> gradient;  // of the mean, in the first row
  } expected[] = {{0.0,
                   {3.2641640776341543, 0.0, 2.817229612029606, 0.38867021051925255},
                   2.1566879667276706,
                   {0.0028433385646290422, -0.3205903739649646, 0.05710998172498004,
                    0.25594918090404967, 0.0046878727713058725}},
                  {0.1,
                   {3.2241640776341542, 0.0, 2.787229612029606, 0.6386702105192525},
                   2.2166879667276707,
                   {-0.0038233281020376253, -0.2939237072982979, 0.050443315058313364,
                    0.24928251423738296, -0.001978793895360795}}};
  const double rounding = 1e-14;
  for (const auto& e : expected) {
    const auto rows = values_of(
        cross_entropy(x, t, {.reduction = Reduction::none, .label_smoothing = e.smoothing}));
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(rows[i], e.rows[i], rounding);
    const Tensor loss = cross_entropy(x, t, {.label_smoothing = e.smoothing});
    EXPECT_NEAR(loss.item(), e.mean, rounding);
    const auto g = values_of(grad(loss, {x})[0]);
    for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(g[i], e.gradient[i], rounding);
    for (std::size_t i = 5; i < 10; ++i) EXPECT_EQ(g[i], 0.0) << "an ignored row";
  }
}

TEST(CrossEntropy, AgreesWithLogProbabilities) {
  const Tensor x = make_input(SampleInput::real({2, 3, 9}, -8.0, 8.0), f64, 3),
               t = Tensor::from(std::vector<std::int64_t>{0, 8, 5, 5, -100, 2}, {2, 3});
  const Tensor log_p = x - log(sum(exp(x), {-1}, Keep::yes));
  for (Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
    const CrossEntropyOptions options{.reduction = reduction, .label_smoothing = 0.3};
    const auto fused = values_of(cross_entropy(x, t, options)),
               composed = values_of(nll_loss(log_p, t, options));
    ASSERT_EQ(fused.size(), composed.size());
    for (std::size_t i = 0; i < fused.size(); ++i) EXPECT_NEAR(fused[i], composed[i], 1e-13);
  }
}

TEST(CrossEntropy, LargeLogits) {
  const Tensor x =
      Tensor::from(std::vector<float>{1e4f, 0.0f, -1e4f,  //
                                      -std::numeric_limits<float>::infinity(), 1.0f, 1.0f},
                   {2, 3});
  const Tensor t = Tensor::from(std::vector<std::int64_t>{1, 2}, {2});
  const auto rows = cross_entropy(x, t, {.reduction = Reduction::none}).to_vector<float>();
  EXPECT_EQ(rows[0], 1e4f);
  EXPECT_FLOAT_EQ(rows[1], std::log(2.0f));
  const auto g =
      grad(cross_entropy(x, t, {.reduction = Reduction::sum}), {x})[0].to_vector<float>();
  EXPECT_EQ(g, (std::vector<float>{1, -1, 0, 0, 0.5f, -0.5f}));
}

TEST(CrossEntropy, MeanOverNothingIsNotANumber) {
  const Tensor t = full({2}, -100, i64);
  EXPECT_TRUE(std::isnan(cross_entropy(zeros({2, 3}), t).item()));
  EXPECT_EQ(cross_entropy(zeros({2, 3}), t, {.reduction = Reduction::sum}).item(), 0.0);
}

TEST(CrossEntropy, BackwardOverwritesTheLogits) {
  // Logits that nothing else reads: the step needs them once, not twice. They are 16 MB, beside
  // which the workspace of a product is small.
  const std::int64_t rows = 1000, classes = 4000;
  const Tensor x = full({rows, 1}, 0.5), w = full({classes, 1}, 0.25), t = zeros({rows}, i64);
  const Program program(
      {.inputs = {}, .outputs = grad(cross_entropy(linear(x, w), t), {w}), .updates = {}});
  EXPECT_LT(program.plan().arena().count, rows * classes * 4 * 5 / 4);
}

TEST(CrossEntropy, BadTargetsAreReportedWhenRun) {
  const Tensor x = zeros({2, 3});
  for (std::int64_t bad : {std::int64_t{3}, std::int64_t{-1}}) {
    const Tensor t = Tensor::from(std::vector<std::int64_t>{0, bad}, {2});
    const std::string index = "index " + std::to_string(bad);
    expect_error([&] { eval(cross_entropy(x, t)); },
                 {"[cross_entropy]", index, "position 1", "[0, 3)"});
    const Tensor direct =
        apply1(cross_entropy_grad_op(), {x, t, zeros({2}), ones({2})}, CrossEntropyAttributes{});
    expect_error([&] { eval(direct); }, {"[cross_entropy_grad]", index, "position 1", "[0, 3)"});
  }
}

TEST(CrossEntropy, Errors) {
  const Tensor x = zeros({2, 3}), t = zeros({2}, i64);
  expect_error([&] { cross_entropy(x, zeros({3}, i64)); }, {"[cross_entropy]", "(3,)", "(2, 3)"});
  expect_error([&] { cross_entropy(x, zeros({2})); }, {"[cross_entropy]", "int64 or int32"});
  expect_error(
      [&] {
        cross_entropy(zeros({2, 3}, i32), t);
      },
      {"[cross_entropy]", "floating-point", "int32"});
  expect_error([&] { cross_entropy(zeros({2, 0}), t); }, {"[cross_entropy]", "at least one class"});
  expect_error([&] { cross_entropy(x, t, {.label_smoothing = 1.5}); },
               {"[cross_entropy]", "[0, 1]", "1.5"});
  const auto backward = [&](const Tensor& lse, const Tensor& g) {
    apply(cross_entropy_grad_op(), {x, t, lse, g}, CrossEntropyAttributes{});
  };
  expect_error([&] { backward(zeros({3}), zeros({2})); },
               {"[cross_entropy_grad]", "logsumexp", "float32 (2,)"});
  expect_error([&] { backward(zeros({2}), zeros({2}, f64)); },
               {"[cross_entropy_grad]", "gradient", "float32 (2,)"});
}

}  // namespace
}  // namespace ebb::test
