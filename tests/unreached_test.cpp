// Parameters that no loss depends on: as with PyTorch's optimizers they are not decayed and have no
// state. A loss that depends on no parameter is an error.
#include <gtest/gtest.h>

#include "ebb/ebb.h"
#include "ebb/train/train_step.h"
#include "support/mlo_problems.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

struct TwoLayers : nn::Module<TwoLayers> {
  nn::Linear used{at("used"), 3, 2}, unused{at("unused"), 3, 2};
  Tensor forward(const Tensor& x) { return used(x); }
};

const std::vector<optim::Optimizer>& decaying() {
  static const std::vector<optim::Optimizer> all{
      optim::SGD{.momentum = 0.9, .weight_decay = 0.1},
      optim::LOMO{.weight_decay = 0.1},
      optim::Adam{.weight_decay = 0.1},
      optim::AdamW{.weight_decay = 0.1},
      optim::Lion{.weight_decay = 0.1},
      optim::Adafactor{.weight_decay = 0.1},
      optim::Adam8bit{.weight_decay = 0.1},
      optim::AdamW8bit{.weight_decay = 0.1},
      optim::AdamW4bit{.weight_decay = 0.1},
  };
  return all;
}

Batch batch() {
  return {{Tensor::from(std::vector<float>{1, 2, 3, -1, 0, 1, 2, -2, 0, 1, 1, 1}, {4, 3})}};
}

TEST(Unreached, ParametersStayAsTheyAreUnderEveryOptimizer) {
  for (const optim::Optimizer& optimizer : decaying())
    for (const std::int64_t parts : {1, 2})
      for (const bool clipped : {false, true}) {
        SCOPED_TRACE(std::string(optimizer.rule().name()));
        auto model = make<TwoLayers>(device::cpu, f32);
        const auto used = values_of(model.used.weight), unused = values_of(model.unused.weight),
                   bias = values_of(model.unused.bias);
        TrainOptions options;
        options.accumulate = parts;
        if (clipped) options.clip_norm = 0.5;
        TrainStep step(
            model, optimizer, [&](const Batch& b) { return mean(square(model(b.x()))); }, options);
        for (int i = 0; i < 3; ++i) step(batch());
        EXPECT_NE(values_of(model.used.weight), used);
        EXPECT_EQ(values_of(model.unused.weight), unused);
        EXPECT_EQ(values_of(model.unused.bias), bias);
        for (const auto& [path, state] : step.optimizer_state().all())
          EXPECT_FALSE(path.starts_with("unused")) << path;
      }
}

// PyTorch gives a gradient of zeros to a parameter that only a flat function reads, and decays it.
TEST(Unreached, AFlatFunctionReaches) {
  auto model = make<TwoLayers>(device::cpu, f32);
  TrainStep step(model, optim::SGD{.lr = 0.5, .weight_decay = 0.5}, [&](const Batch& b) {
    return mean(square(model(b.x()))) + sum(sign(model.unused.weight));
  });
  const std::vector<double> before = values_of(model.unused.weight);
  step(batch());
  const std::vector<double> after = values_of(model.unused.weight);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(after[i], 0.75 * before[i], 1e-7);
}

TEST(Unreached, ALossThatReachesNothingIsAnError) {
  auto model = make<TwoLayers>(device::cpu, f32);
  const auto trace = [&](const LossFunction& loss) {
    TrainStep step(model, optim::SGD{}, loss);
    step(batch());
  };
  expect_error([&] { trace([](const Batch& b) { return mean(b.x()); }); },
               {"the loss depends on none of", "4 trainable parameters", "used.weight"});
  expect_error([&] { trace([&](const Batch& b) { return mean(stop_gradient(model(b.x()))); }); },
               {"the loss depends on none of"});
  model.freeze();
  expect_error([&] { trace([&](const Batch& b) { return mean(model(b.x())); }); },
               {"no trainable parameters"});
}

// --- Several levels

struct TwoPoints : nn::Module<TwoPoints> {
  TwoPoints()
      : Module(nn::Place{nullptr, {}, device::cpu, f64, false}),
        used(parameter("used", {2}, nn::Initial::constant(1.0))),
        unused(parameter("unused", {2}, nn::Initial::constant(1.0))) {}
  Variable used, unused;
};

struct TwoPointsProblem : mlo::Problem {
  using Loss = std::function<Tensor()>;
  TwoPointsProblem(const std::string& name, TwoPoints& points, const mlo::Config& config, Loss l)
      : Problem(name, points, optim::SGD{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.5},
                {config, optim::constant(), {}}),
        loss(std::move(l)) {}
  mlo::StepOutput training_step(const Batch&) override { return loss(); }
  Batch get_batch() override { return {{Tensor::from(Row{0.0}, {})}}; }
  std::vector<TensorType> batch_types() const override { return {{{}, f64}}; }
  Loss loss;
};

TEST(Unreached, LevelsLeaveThemAlone) {
  for (const mlo::Method method :
       {mlo::Method::darts, mlo::Method::neumann, mlo::Method::cg, mlo::Method::unrolled})
    for (const std::int64_t parts : {1, 2}) {
      TwoPoints below, above;
      TwoPointsProblem lower("lower", below, {.type = method, .gradient_accumulation = parts},
                             [&] { return sum_squares(below.used - above.used) * 0.5; });
      // The upper loss depends on its own parameters only through the level below.
      TwoPointsProblem upper("upper", above, {}, [&] { return sum(below.used); });
      mlo::Engine engine({&upper, &lower},
                         {.u2l = {{"upper", {"lower"}}}, .l2u = {{"lower", {"upper"}}}});
      for (int i = 0; i < 4; ++i) engine.train_step();
      for (const TwoPoints* points : {&below, &above}) {
        EXPECT_NE(values_of(points->used), (Row{1.0, 1.0}));
        EXPECT_EQ(values_of(points->unused), (Row{1.0, 1.0}));
      }
    }
}

TEST(Unreached, ALevelThatNothingReachesIsAnError) {
  TwoPoints points;
  const Variable other(full({2}, 1.0, f64));
  TwoPointsProblem problem("alone", points, {}, [&] { return sum(other); });
  mlo::Engine engine({&problem}, {});
  expect_error([&] { engine.train_step(); }, {"\"alone\"", "depends on", "2 trainable parameters"});
}

}  // namespace
}  // namespace ebb::test
