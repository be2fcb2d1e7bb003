// Levels in half precision: hypergradients close to those of float32, with losses so small that
// their gradients would vanish in float16, and updates that are skipped when a scale is too large.
#include <gtest/gtest.h>

#include "ebb/mlo/engine.h"
#include "ebb/nn/layers.h"
#include "ebb/optim/sgd.h"
#include "support/mlo_problems.h"

namespace ebb::test {
namespace {

using mlo::Config;
using mlo::Method;

struct Net : nn::Module<Net> {
  nn::Linear hidden{at("hidden"), 8, 16}, out{at("out"), 16, 1};
  Tensor forward(const Tensor& x) { return reshape(out(tanh(hidden(x))), {-1}); }
};

struct ItemWeights : nn::Module<ItemWeights> {
  Variable scores = parameter("scores", {8, 1}, nn::Initial::normal(0.5));
  // By a product, so that gradients in the scores are computed in halves.
  Tensor operator()(const Tensor& x) const { return sigmoid(reshape(matmul(x, scores), {-1})); }
};

Tensor numbers(const Shape& shape, std::uint64_t key) {
  return eval(random_normal(shape, 0.0, 1.0, f32, device::cpu, RandomKey{key}));
}

struct Points : mlo::Problem {
  Points(const char* name, nn::ModuleBase& module, const optim::Optimizer& optimizer,
         const Config& config, std::int64_t count, std::uint64_t key)
      : Problem(name, module, optimizer, {config, optim::constant(), {}}),
        batch{{numbers({count, 8}, key), numbers({count}, key + 1)}} {}
  Batch get_batch() override { return batch; }
  std::vector<TensorType> batch_types() const override { return batch.types(); }
  Batch batch;
};

Tensor guesses(nn::ModuleBase& net, const Tensor& x) {
  return cast(static_cast<Net&>(net)(cast(x, net.dtype())), f32);
}

struct Lower : Points {
  Lower(nn::ModuleBase& module, const optim::Optimizer& optimizer, const Config& config, double s)
      : Points("lower", module, optimizer, config, 12, 1), size(s) {}
  mlo::StepOutput training_step(const Batch& b) override {
    const Tensor weights = static_cast<ItemWeights&>(other("upper").module())(b.x());
    return mean(weights * square(guesses(module(), b.x()) - b.y())) * size;
  }
  double size;
};

struct Upper : Points {
  using Points::Points;
  mlo::StepOutput training_step(const Batch& b) override {
    return mean(square(guesses(other("lower").module(), b.x()) - b.y()));
  }
};

// Size of the lower loss: its gradients are about as small, below what float16 can hold.
constexpr double tiny = 1e-6;

struct Levels {
  Net net;
  ItemWeights weights = make<ItemWeights>(device::cpu, f32);
  Lower lower;
  Upper upper;
  mlo::Engine engine;

  Levels(const Config& below, const Config& above, double rate = 0.0, double size = tiny)
      : net(make<Net>(device::cpu, parameter_dtype(below.precision))),
        lower(net, optim::SGD{.lr = rate}, below, size),
        upper("upper", weights, optim::SGD{.lr = 1.0}, above, 10, 11),
        engine({&lower, &upper}, {.u2l = {{"upper", {"lower"}}}, .l2u = {{"lower", {"upper"}}}},
               {.seed = 5}) {
    weights.scores.materialise(6);
  }
  Row hypergradient() {
    const Row before = values_of(weights.scores);
    engine.train_step();
    return plus(before, values_of(weights.scores), -1.0);
  }
};

double size_of_row(const Row& a) { return distance(a, Row(a.size())); }

// Halves have 11 bits (float16) or 8 (bfloat16). A difference over a third of the parameters' norm
// loses one or two of them, a chain of products as many, and solving a system as many as its
// condition has.
TEST(MloPrecision, HypergradientsAreThoseOfFloat32) {
  struct Case {
    Config config;
    double fp16, bf16;  // relative errors allowed
  };
  for (Case c :
       {Case{{.darts_alpha = 0.3}, 0.02, 0.15},
        Case{{.type = Method::sama, .sama_adam_alpha = 0.3}, 0.02, 0.15},
        Case{{.type = Method::neumann, .neumann_iterations = 3, .neumann_alpha = 0.1 / tiny},
             0.02,
             0.15},
        Case{{.type = Method::cg, .cg_iterations = 3}, 0.06, 0.5},
        Case{{.type = Method::unrolled}, 0.02, 0.15}}) {
    SCOPED_TRACE(mlo::name(c.config.type));
    const double rate = c.config.type == Method::unrolled ? 0.1 / tiny : 0.0;
    const Row exact = Levels(c.config, {}, rate).hypergradient();
    ASSERT_GT(size_of_row(exact), 0.0);
    const auto error = [&](Precision precision, double scale) {
      c.config.precision = precision;
      c.config.initial_dynamic_scale = scale;
      return distance(Levels(c.config, {}, rate).hypergradient(), exact) / size_of_row(exact);
    };
    EXPECT_LT(error(Precision::mixed_fp16, 0x1p20), c.fp16);
    EXPECT_LT(error(Precision::mixed_bf16, 1.0), c.bf16);
    // Without a scale a difference of tiny gradients is lost.
    if (c.config.type == Method::darts || c.config.type == Method::sama) {
      EXPECT_GT(error(Precision::mixed_fp16, 1.0), 0.3);
    }
  }
}

TEST(MloPrecision, UpperInFloat16) {
  const Row exact = Levels({.darts_alpha = 0.3}, {}).hypergradient(),
            half =
                Levels({.darts_alpha = 0.3}, {.precision = Precision::mixed_fp16}).hypergradient();
  EXPECT_LT(distance(half, exact), 0.01 * size_of_row(exact));
}

TEST(MloPrecision, OverflowSkipsTheUpdateAndLowersTheScale) {
  Levels levels({.precision = Precision::mixed_fp16, .initial_dynamic_scale = 0x1p40}, {}, 0.01,
                1.0);
  const Row start = values_of(levels.net.hidden.weight), above = values_of(levels.weights.scores);
  levels.engine.train_step();
  EXPECT_EQ(levels.lower.last().at("skipped"), 1.0);
  EXPECT_EQ(levels.lower.last().at("loss_scale"), 0x1p40);
  EXPECT_EQ(levels.upper.last().at("skipped"), 1.0);  // its hypergradient overflowed too
  EXPECT_EQ(values_of(levels.net.hidden.weight), start);
  EXPECT_EQ(values_of(levels.weights.scores), above);
  int steps = 1;
  while (steps < 60 &&
         (levels.upper.last().at("skipped") == 1.0 || levels.lower.last().at("skipped") == 1.0))
    levels.engine.train_step(), ++steps;
  EXPECT_LT(steps, 40);
  EXPECT_GT(levels.lower.last().at("loss_scale"), 0x1p3);
  EXPECT_NE(values_of(levels.net.hidden.weight), start);
  EXPECT_NE(values_of(levels.weights.scores), above);
}

// With weights in bfloat16 a Hessian is that at the rounded weights, and vectors are rounded too.
TEST(MloPrecision, WeightsInBfloat16) {
  for (Config config :
       {Config{.type = Method::neumann, .neumann_iterations = 3, .neumann_alpha = 0.1},
        Config{.type = Method::cg}}) {
    SCOPED_TRACE(mlo::name(config.type));
    const Row exact = Levels(config, {}, 0.0, 1.0).hypergradient();
    ASSERT_GT(size_of_row(exact), 0.0);
    for (const Precision precision : {Precision::pure_bf16, Precision::split_bf16}) {
      config.precision = precision;
      const Row rounded = Levels(config, {}, 0.0, 1.0).hypergradient();
      EXPECT_LT(distance(rounded, exact) / size_of_row(exact), 0.15) << name(precision);
    }
  }
  // Steps far below bfloat16's resolution add up: through stochastic rounding, or in the additional
  // bits.
  for (const Precision precision : {Precision::pure_bf16, Precision::split_bf16}) {
    Levels levels({.type = Method::neumann, .precision = precision}, {}, 1e-3, 1.0);
    EXPECT_EQ(levels.net.hidden.weight.dtype(), bf16);
    levels.engine.train_step();
    const double first = levels.lower.last().at("loss");
    for (int i = 0; i < 300; ++i) levels.engine.train_step();
    EXPECT_LT(levels.lower.last().at("loss"), 0.9 * first) << name(precision);
    EXPECT_EQ(levels.engine.resident(), levels.engine.plan().peak);
  }
}

TEST(MloPrecision, WhatCannotBe) {
  for (const Method method : {Method::darts, Method::sama, Method::unrolled, Method::reinforce})
    expect_error([&] { Levels({.type = method, .precision = Precision::pure_bf16}, {}); },
                 {"\"lower\"", "pure-bf16", "neumann and cg", std::string(mlo::name(method))});
  Point wide({1.0});
  PointProblem only("only", wide, optim::SGD{}, {.precision = Precision::mixed_bf16},
                    [&](const Batch&) { return sum(wide.value); });
  mlo::Engine engine({&only}, {});
  expect_error([&] { engine.train_step(); }, {"\"only\"", "bf16", "float32", "float64"});
}

}  // namespace
}  // namespace ebb::test
