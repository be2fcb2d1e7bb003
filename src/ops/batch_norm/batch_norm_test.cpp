#include "ops/batch_norm/batch_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/image_axes.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

Tensor train(const Tensor& x, const Tensor& weight, const Tensor& bias,
             ImageLayout layout = ImageLayout::channels_first) {
  return batch_norm(x, weight, bias, {}, {}, Training::yes, 0.1, 1e-5, layout).y;
}

Sample sample(const char* name, std::vector<SampleInput> inputs,
              std::function<std::vector<Tensor>(const std::vector<Tensor>&)> function) {
  Sample result{name, std::move(inputs), std::move(function)};
  result.half_tolerance_factor = 8.0;  // gradients are sums whose parts cancel
  return result;
}

TEST(BatchNorm, Training) {
  const SampleInput c = SampleInput::real({3});
  for (const Shape& shape : {Shape{5, 3}, Shape{4, 3, 2}, Shape{2, 3, 4, 5}}) {
    const SampleInput x = SampleInput::real(shape);
    check(sample("weight and bias", {x, c, c},
                 [](const auto& t) { return std::vector{train(t[0], t[1], t[2])}; }));
    check(
        sample("weight", {x, c}, [](const auto& t) { return std::vector{train(t[0], t[1], {})}; }));
    check(sample("bias", {x, c}, [](const auto& t) { return std::vector{train(t[0], {}, t[1])}; }));
    check(sample("plain", {x}, [](const auto& t) { return std::vector{train(t[0], {}, {})}; }));
  }
}

TEST(BatchNorm, TrainingWithTheChannelsLast) {
  const ImageLayout last = ImageLayout::channels_last;
  for (const std::int64_t channels : {3, 8}) {
    const SampleInput c = SampleInput::real({channels});
    for (const Shape& shape :
         {Shape{5, channels}, Shape{4, 2, channels}, Shape{2, 3, 4, channels}}) {
      const SampleInput x = SampleInput::real(shape);
      check(sample("weight and bias", {x, c, c},
                   [](const auto& t) { return std::vector{train(t[0], t[1], t[2], last)}; }));
      check(sample("bias", {x, c},
                   [](const auto& t) { return std::vector{train(t[0], {}, t[1], last)}; }));
      check(sample("plain", {x},
                   [](const auto& t) { return std::vector{train(t[0], {}, {}, last)}; }));
    }
  }
  check(sample("evaluation",
               {SampleInput::real({2, 4, 3}), SampleInput::real({3}), SampleInput::real({3}),
                SampleInput::fixed({3}, -1.0, 1.0), SampleInput::fixed({3}, 0.5, 2.0)},
               [](const auto& t) {
                 return std::vector{
                     batch_norm(t[0], t[1], t[2], t[3], t[4], Training::no, 0.1, 1e-5, last).y};
               }));
}

// Values, gradients and running statistics do not depend on the layout of channels.
TEST(BatchNorm, BothLayoutsAgree) {
  const Tensor x = make_input(SampleInput::real({6, 5, 7, 9}, -3.0, 9.0), f64, 1),
               g = make_input(SampleInput::real({6, 5, 7, 9}), f64, 2),
               w = make_input(SampleInput::real({5}), f64, 3);
  const auto results = [&](ImageLayout layout, Training training) {
    const BatchNormResult r = batch_norm(from_channels_first(x, layout), w, w, zeros({5}, f64),
                                         ones({5}, f64), training, 0.1, 1e-5, layout);
    const Tensor y = as_channels_first(r.y, layout);
    std::vector<Tensor> all = grad(sum(y * g), {x, w});
    all.insert(all.end(), {y, r.running_mean, r.running_var});
    return eval(all);
  };
  for (const Training training : {Training::yes, Training::no}) {
    const auto first = results(ImageLayout::channels_first, training),
               last = results(ImageLayout::channels_last, training);
    for (std::size_t i = 0; i < first.size(); ++i) {
      const std::vector<double> a = values_of(first[i]), b = values_of(last[i]);
      ASSERT_EQ(a.size(), b.size());
      for (std::size_t k = 0; k < a.size(); ++k)
        ASSERT_NEAR(a[k], b[k], 1e-11) << "result " << i;  // sums of 378 numbers in another order
    }
  }
}

// Numbers whose normalised values stay away from 0, where relu has a corner: every other sample is
// negative.
SampleInput two_sided(const Shape& shape) {
  SampleInput x = SampleInput::real(shape);
  for (std::int64_t i = 0; i < shape.elements(); ++i)
    x.values.push_back((i / (shape.elements() / shape[0]) % 2 == 0 ? -1.0 : 1.0) *
                       (1.0 + static_cast<double>(i % 11) / 16.0));
  return x;
}

TEST(BatchNorm, TrainingWithRelu) {
  for (const ImageLayout layout : {ImageLayout::channels_first, ImageLayout::channels_last})
    for (const Shape& shape : {Shape{15, 3}, Shape{14, 3, 3}, Shape{2, 8, 4, 8}}) {
      const Shape channels{shape[channel_axis(shape, layout)]};
      const SampleInput x = two_sided(shape), w = SampleInput::real(channels, 0.5, 1.5),
                        b = SampleInput::real(channels, -0.1, 0.1);
      const auto with = [layout](bool weight, bool bias) {
        return [=](const std::vector<Tensor>& t) {
          return std::vector{
              apply(batch_norm_op(), t, BatchNormAttributes{1e-5, weight, bias, layout, true})[0]};
        };
      };
      check(sample("relu, weight and bias", {x, w, b}, with(true, true)));
      check(sample("relu, weight", {x, w}, with(true, false)));
      check(sample("relu, bias", {x, b}, with(false, true)));
      check(sample("relu", {x}, with(false, false)));
    }
}

TEST(BatchNorm, TrainingWithASum) {
  for (const ImageLayout layout : {ImageLayout::channels_first, ImageLayout::channels_last})
    for (const Shape& shape : {Shape{15, 3}, Shape{14, 3, 3}, Shape{2, 8, 4, 8}})
      for (const bool relu : {false, true}) {
        const Shape channels{shape[channel_axis(shape, layout)]};
        const SampleInput x = two_sided(shape), w = SampleInput::real(channels, 0.5, 1.5),
                          b = SampleInput::real(channels, -0.1, 0.1),
                          added = SampleInput::real(shape, -0.1, 0.1);
        const auto with = [=](bool weight, bool bias) {
          return [=](const std::vector<Tensor>& t) {
            return std::vector{
                apply(batch_norm_op(), t,
                      BatchNormAttributes{1e-5, weight, bias, layout, relu, true})[0]};
          };
        };
        check(sample("sum, weight and bias", {x, w, b, added}, with(true, true)));
        check(sample("sum, weight", {x, w, added}, with(true, false)));
        check(sample("sum", {x, added}, with(false, false)));
      }
  const Tensor x = zeros({4, 3});
  expect_error(
      [&] {
        apply(batch_norm_op(), {x, zeros({4, 2})}, BatchNormAttributes{.eps = 1e-5, .added = true});
      },
      {"[batch_norm]", "of one type", "(4, 2)"});
}

TEST(BatchNorm, Evaluation) {
  const SampleInput c = SampleInput::real({3});
  check(sample("evaluation",
               {SampleInput::real({2, 3, 4}), c, c, SampleInput::fixed({3}, -1.0, 1.0),
                SampleInput::fixed({3}, 0.5, 2.0)},
               [](const auto& t) {
                 return std::vector{batch_norm(t[0], t[1], t[2], t[3], t[4], Training::no).y};
               }));
}

TEST(BatchNorm, RunningStatistics) {
  const Tensor x = Tensor::from(std::vector<float>{1, 10, 2, 20, 3, 60}, {3, 2});
  const Tensor mean = Tensor::from(std::vector<float>{0, 100}, {2}), var = ones({2});
  const BatchNormResult result = batch_norm(x, {}, {}, mean, var, Training::yes, 0.25);
  const auto new_mean = result.running_mean.to_vector<float>(),
             new_var = result.running_var.to_vector<float>();
  EXPECT_FLOAT_EQ(new_mean[0], 0.5f);   // a quarter of 2
  EXPECT_FLOAT_EQ(new_mean[1], 82.5f);  // three quarters of 100 and a quarter of 30
  EXPECT_FLOAT_EQ(new_var[0], 1.0f);    // the unbiased variance of 1, 2, 3 is 1
  EXPECT_FLOAT_EQ(new_var[1], 0.75f + 0.25f * 700.0f);
  EXPECT_EQ(values_of(grad(sum(result.running_var), {x})[0]), std::vector<double>(6, 0.0));

  const BatchNormResult fixed = batch_norm(x, {}, {}, mean, var, Training::no);
  EXPECT_EQ(fixed.running_mean, mean);
  EXPECT_EQ(fixed.running_var, var);
  const BatchNormResult none = batch_norm(x, {}, {}, {}, {}, Training::yes);
  EXPECT_FALSE(none.running_mean || none.running_var);
}

// Statistics of half tensors are kept in float32, and running ones in the dtype they have.
TEST(BatchNorm, HalfTypesWithFloatStatistics) {
  const Tensor x = eval(random_normal({4, 3, 8}, 5.0, 1.0, bf16));
  const Tensor mean = zeros({3}), var = ones({3}, bf16);
  const BatchNormResult result = batch_norm(x, {}, {}, mean, var, Training::yes);
  EXPECT_EQ(result.y.dtype(), bf16);
  EXPECT_EQ(result.running_mean.dtype(), f32);
  EXPECT_EQ(result.running_var.dtype(), bf16);
}

// Long runs, tiles with remainders, and blocks of columns, for any number of threads.
TEST(BatchNorm, DoesNotDependOnThreads) {
  for (const Shape& shape : {Shape{3, 5, 1101}, Shape{700, 133}, Shape{70, 50, 3}}) {
    const Tensor x = eval(random_normal(shape, 100.0, 2.0)),
                 g = eval(random_normal(shape, 0.0, 1.0));
    const Tensor w = eval(random_normal({shape[1]}, 1.0, 0.2));
    const auto run = [&](DType dtype) {
      const Tensor xs = cast(x, dtype), ws = cast(w, dtype);
      const Tensor y = train(xs, ws, ws);
      std::vector<Tensor> results = grad(sum(y * cast(g, dtype)), {xs, ws});
      results.push_back(y);
      std::vector<std::vector<double>> values;
      for (const Tensor& result : eval(results)) values.push_back(values_of(result));
      return values;
    };
    const int before = threads();
    set_threads(1);
    const auto one = run(f32);
    set_threads(3);
    EXPECT_EQ(run(f32), one);
    set_threads(before);
    const auto exact = run(f64);
    for (std::size_t i = 0; i < exact.size(); ++i)
      for (std::size_t k = 0; k < exact[i].size(); ++k)
        // Values near 100 in float32 leave 1e-5 after centring; weights sum up to 1101 of those.
        ASSERT_NEAR(one[i][k], exact[i][k], 2e-3) << to_string(shape);
  }
}

TEST(BatchNorm, Errors) {
  const Tensor x = zeros({2, 3});
  expect_error([&] { train(zeros({3}), {}, {}); }, {"[batch_norm]", "(N, C, ...)"});
  expect_error([&] { train(zeros({3}), {}, {}, ImageLayout::channels_last); },
               {"[batch_norm]", "(N, ..., C)"});
  expect_error(
      [&] {
        train(zeros({2, 4, 3}), ones({4}), {}, ImageLayout::channels_last);
      },
      {"[batch_norm]", "weight", "(3,)", "(4,)"});
  expect_error([&] { train(zeros({1, 3}), {}, {}); }, {"[batch_norm]", "more than one value", "1"});
  expect_error([&] { train(x, ones({2}), {}); }, {"[batch_norm]", "weight", "(3,)", "(2,)"});
  expect_error([&] { train(x, {}, ones({4})); }, {"[batch_norm]", "bias", "(3,)"});
  const auto backward = [&](const Tensor& bias, bool relu) {
    apply(batch_norm_grad_op(), {x, x, zeros({3}), ones({3}), bias},
          BatchNormGradAttributes{1e-5, false, ImageLayout::channels_first, relu, true});
  };
  expect_error([&] { backward(ones({4}), true); }, {"[batch_norm_grad]", "bias", "(3,)", "(4,)"});
  expect_error([&] { backward(ones({3}, f64), true); }, {"[batch_norm_grad]", "float64"});
  expect_error([&] { backward(ones({3}), false); }, {"[batch_norm_grad]", "relu"});
  expect_error([&] { train(zeros({2, 3}, i32), {}, {}); }, {"[batch_norm]", "floating-point"});
  expect_error([&] { batch_norm(x, {}, {}, {}, {}, Training::no); },
               {"[batch_norm]", "running mean", "training"});
  expect_error([&] { batch_norm(x, {}, {}, ones({2}), ones({3}), Training::no); },
               {"[batch_norm]", "running mean", "(3,)"});
  expect_error([&] { batch_norm(x, {}, {}, {}, {}, Training::yes, 0.1, -1.0); },
               {"[batch_norm]", "eps"});
}

}  // namespace
}  // namespace ebb::test
