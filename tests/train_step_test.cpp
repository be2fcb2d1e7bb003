#include "ebb/train/train_step.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ebb/ebb.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

struct Line : nn::Module<Line> {
  using Module::Module;
  Variable slope = parameter("slope", {1}, nn::Initial::constant(0.0));
  Variable offset = parameter("offset", {1}, nn::Initial::normal(1.0));
  Tensor forward(const Tensor& x) { return x * slope + offset; }
};

Batch line_batch() {
  std::vector<float> x, y;
  for (int i = 0; i < 32; ++i)
    x.push_back(static_cast<float>(i) / 16.0f - 1.0f), y.push_back(3.0f * x.back() + 2.0f);
  return {{Tensor::from(x, {32}), Tensor::from(y, {32})}};
}

TEST(TrainStep, FitsALine) {
  auto model = make<Line>(device::cpu, f32);
  TrainStep step(model, optim::SGD{.lr = 0.2, .momentum = 0.5},
                 [&](const Batch& b) { return mean(square(model(b.x()) - b.y())); });
  const Batch batch = line_batch();
  double loss = 0.0;
  for (int i = 0; i < 100; ++i) loss = step(batch).loss;
  EXPECT_LT(loss, 1e-10);
  EXPECT_NEAR(model.slope.to_vector<float>()[0], 3.0f, 1e-4f);
  EXPECT_NEAR(model.offset.to_vector<float>()[0], 2.0f, 1e-4f);
}

TEST(TrainStep, ClipsByTheGlobalNorm) {
  auto model = make<Line>(device::cpu, f32);
  model.slope.assign(zeros({1}));
  model.offset.assign(zeros({1}));
  TrainStep step(model, optim::SGD{.lr = 1.0},
                 [&](const Batch& b) { return mean(square(model(b.x()) - b.y())); },
                 {.schedule = optim::constant(), .clip_norm = 0.5, .compile = {}});
  const StepResult result = step(line_batch());
  EXPECT_GT(result.gradient_norm, 0.5);
  const double moved =
      std::hypot(model.slope.to_vector<float>()[0], model.offset.to_vector<float>()[0]);
  EXPECT_NEAR(moved, 0.5, 1e-5);  // a step of rate 1 moves by the clipped norm
}

TEST(TrainStep, SchedulesScaleTheRate) {
  auto model = make<Line>(device::cpu, f32);
  TrainStep step(
      model, optim::SGD{.lr = 0.1},
      [&](const Batch& b) { return mean(square(model(b.x()) - b.y())); },
      {.schedule = optim::linear_warmup(4, optim::cosine(4)), .clip_norm = {}, .compile = {}});
  std::vector<double> rates;
  for (int i = 0; i < 9; ++i) rates.push_back(step(line_batch()).rate);
  EXPECT_DOUBLE_EQ(rates[0], 0.025);
  EXPECT_DOUBLE_EQ(rates[3], 0.1);
  EXPECT_DOUBLE_EQ(rates[4], 0.1);
  EXPECT_NEAR(rates[6], 0.05, 1e-12);
  EXPECT_NEAR(rates[8], 0.0, 1e-12);
}

TEST(TrainStep, FrozenParametersStay) {
  struct TwoLines : nn::Module<TwoLines> {
    Line first{at("first")}, second{at("second")};
    Tensor forward(const Tensor& x) { return first(x) + second(x); }
  };
  auto model = make<TwoLines>(device::cpu, f32);
  model.first.freeze();
  TrainStep step(model, optim::AdamW{},
                 [&](const Batch& b) { return mean(square(model(b.x()) - b.y())); });
  step(line_batch());
  EXPECT_EQ(model.first.slope.to_vector<float>()[0], 0.0f);
  EXPECT_NE(model.second.slope.to_vector<float>()[0], 0.0f);
  for (const auto& [path, variable] : step.optimizer_state().all())
    EXPECT_TRUE(path.starts_with("second.")) << path;
  model.second.freeze();
  TrainStep none(model, optim::AdamW{},
                 [&](const Batch& b) { return mean(square(model(b.x()) - b.y())); });
  expect_error([&] { none(line_batch()); }, {"no trainable parameters"});
}

TEST(TrainStep, TheSameSeedGivesTheSameBits) {
  const auto run = [](std::uint64_t seed) {
    auto model = make<Line>(device::cpu, f32);
    TrainOptions options;
    options.compile.seed = seed;
    TrainStep step(
        model, optim::AdamW{.lr = 0.1},
        [&](const Batch& b) { return mean(square(dropout(model(b.x()), 0.3) - b.y())); }, options);
    std::vector<double> losses;
    for (int i = 0; i < 5; ++i) losses.push_back(step(line_batch()).loss);
    return losses;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

}  // namespace
}  // namespace ebb::test
