#include <gtest/gtest.h>

#include "support/op_check.h"

namespace ebb::test {
namespace {

constexpr Reduction reductions[] = {Reduction::none, Reduction::mean, Reduction::sum};

TEST(Loss, Gradients) {
  for (Reduction reduction : reductions) {
    check({"mse", {SampleInput::real({3, 4}), SampleInput::real({3, 4})}, [=](const auto& x) {
             return std::vector{mse_loss(x[0], x[1], reduction)};
           }});
    check({"bce",
           {SampleInput::real({3, 4}, -4.0, 4.0), SampleInput::real({3, 4}, 0.0, 1.0)},
           [=](const auto& x) { return std::vector{bce_with_logits(x[0], x[1], reduction)}; }});
    SampleInput targets = SampleInput::index({2, 3}, 5);
    targets.values = {0, 4, -100, 2, 2, -100};
    for (double smoothing : {0.0, 0.1})
      check({"nll", {SampleInput::real({2, 3, 5}), targets}, [=](const auto& x) {
               return std::vector{
                   nll_loss(x[0], x[1], {.reduction = reduction, .label_smoothing = smoothing})};
             }});
  }
}

TEST(Loss, BceIsStable) {
  const Tensor x = Tensor::from(std::vector<float>{-200.0f, 200.0f}, {2}),
               t = Tensor::from(std::vector<float>{1.0f, 0.0f}, {2});
  EXPECT_EQ(bce_with_logits(x, t, Reduction::none).to_vector<float>(),
            (std::vector<float>{200.0f, 200.0f}));
}

TEST(Loss, HalfMeansDoNotOverflow) {
  const Tensor x = full({100, 100}, 4.0, f16);
  EXPECT_EQ(mse_loss(x, zeros_like(x)).item(), 16.0);  // the sum, 160000, is beyond float16
}

TEST(Loss, Errors) {
  expect_error(
      [] {
        nll_loss(zeros({2, 3, 4}), zeros({3, 2}, i64));
      },
      {"[nll_loss]", "(3, 2)", "(2, 3, 4)"});
}

}  // namespace
}  // namespace ebb::test
