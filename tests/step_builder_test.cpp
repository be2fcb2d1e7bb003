// The step of a single level and a TrainStep are built by the same code and give the same bits.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ebb/ebb.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

struct Case {
  Precision precision = Precision::fp32;
  std::int64_t parts = 1;
  double clip = 0.0;
};

constexpr std::int64_t items = 8, features = 6;

// A batch's inputs are `size` times numbers between -1 and 1.
Batch batch_of(int step, double size) {
  const Tensor x = random_uniform({items, features}, -size, size, f32, device::cpu,
                                  RandomKey{static_cast<std::uint64_t>(step + 1)});
  std::vector<std::int64_t> targets;
  for (std::int64_t i = 0; i < items; ++i) targets.push_back((i + step) % 3);
  return {{eval(x), Tensor::from(targets, {items})}};
}

struct Model {
  explicit Model(Precision precision)
      : net(make<models::Mlp>(device::cpu, parameter_dtype(precision),
                              models::MlpConfig{.inputs = features, .hidden = 5, .classes = 3})) {
    std::uint64_t key = 100;
    for (const nn::NamedVariable& p : net.parameters()) {
      Variable variable = p.variable;
      variable.assign(
          eval(cast(random_uniform(variable.shape(), -1.0, 1.0, f32, device::cpu, RandomKey{++key}),
                    variable.dtype())));
    }
  }
  Tensor loss(const Batch& b) { return cross_entropy(net(cast(b.x(), net.dtype())), b.y()); }
  std::vector<double> weights() const {
    std::vector<double> all;
    for (const nn::NamedVariable& p : net.parameters())
      for (const double value : values_of(p.variable)) all.push_back(value);
    return all;
  }

  models::Mlp net;
};

struct Classify : mlo::Problem {
  Classify(Model& m, const optim::Optimizer& optimizer, const mlo::Config& config)
      : Problem("classify", m.net, optimizer, {.config = config}), model(m) {}
  mlo::StepOutput training_step(const Batch& b) override { return model.loss(b); }
  Batch get_batch() override {
    const std::int64_t own = items / config().gradient_accumulation, part = next++;
    Batch result;
    for (const Tensor& t : whole.tensors)
      result.tensors.push_back(eval(slice(t, 0, part * own, (part + 1) * own)));
    return result;
  }
  std::vector<TensorType> batch_types() const override {
    const std::int64_t own = items / config().gradient_accumulation;
    return {{{own, features}, f32}, {{own}, i64}};
  }

  Model& model;
  Batch whole;
  std::int64_t next = 0;  // part of `whole`
};

void expect_same_bits(const Case& c) {
  SCOPED_TRACE(fmt::format("{}, {} parts, clip {}", name(c.precision), c.parts, c.clip));
  const optim::Optimizer optimizer = optim::AdamW{.lr = 0.01};
  Model alone(c.precision), level(c.precision);
  TrainOptions options;
  options.precision = c.precision, options.accumulate = c.parts;
  if (c.clip > 0.0) options.clip_norm = c.clip;
  options.loss_scale = {.initial = 4096.0, .growth = 2.0, .backoff = 0.5};
  TrainStep step(
      alone.net, optimizer, [&](const Batch& b) { return alone.loss(b); }, options);
  Classify problem(level, optimizer,
                   {.gradient_accumulation = c.parts,
                    .gradient_clipping = c.clip,
                    .precision = c.precision,
                    .initial_dynamic_scale = 4096.0});
  mlo::Engine engine({&problem}, {});

  for (int i = 0; i < 6; ++i) {
    const Batch batch = batch_of(i, i == 3 ? 60000.0 : 1.0);  // the fourth overflows in float16
    problem.whole = batch, problem.next = 0;
    for (std::int64_t part = 0; part < c.parts; ++part) engine.train_step();
    const StepResult result = step(batch);
    const mlo::Stats& last = problem.last();
    EXPECT_EQ(std::isfinite(result.loss), std::isfinite(last.at("loss")));
    if (std::isfinite(result.loss)) {
      EXPECT_EQ(result.loss, last.at("loss"));
    }
    if (c.clip > 0.0 && std::isfinite(result.gradient_norm)) {
      EXPECT_EQ(result.gradient_norm, last.at("gradient_norm"));
    }
    if (c.precision == Precision::mixed_fp16) {
      EXPECT_EQ(result.loss_scale, last.at("loss_scale"));
      EXPECT_EQ(result.skipped, last.at("skipped") != 0.0);
      EXPECT_EQ(result.skipped, i == 3);
    }
    EXPECT_EQ(alone.weights(), level.weights()) << "after step " << i;
  }
}

TEST(StepBuilder, ASingleLevelIsATrainStep) {
  for (const Precision precision :
       {Precision::fp32, Precision::mixed_fp16, Precision::mixed_bf16, Precision::split_bf16})
    for (const std::int64_t parts : {1, 2})
      for (const double clip : {0.0, 0.5}) expect_same_bits({precision, parts, clip});
}

}  // namespace
}  // namespace ebb::test
