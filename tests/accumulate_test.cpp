// Micro-batches: the same gradients as the whole batch, with a share of its activations.
#include <gtest/gtest.h>

#include <cmath>

#include "ebb/ebb.h"
#include "ebb/models/gpt2.h"
#include "ebb/train/train_step.h"
#include "support/op_check.h"
#include "support/plan_check.h"

namespace ebb::test {
namespace {

const models::Gpt2Config config{
    .vocabulary = 61, .context = 16, .layers = 2, .heads = 2, .width = 32, .dropout = 0.0};

struct Step {
  std::vector<double> weights;  // all of them after one step of plain descent
  double loss = 0.0;
  Plan plan;
};

Step step_with(std::int64_t parts, std::int64_t items, const TrainOptions& other = {},
               DType dtype = f32) {
  auto model = make<models::Gpt2>(device::cpu, dtype, config);
  TrainOptions options = other;
  options.accumulate = parts;
  TrainStep step(
      model, optim::SGD{.lr = 1.0}, [&](const Batch& b) { return model.loss(b.x(), b.y()); },
      options);
  const auto ids = [&](std::uint64_t key) {
    return eval(
        cast(random_uniform({items, 16}, 0.0, 61.0, f32, device::cpu, RandomKey{key}), i64));
  };
  const Batch batch{{ids(1), ids(2)}};
  Step result;
  result.loss = step(batch).loss;
  result.plan = step.plan(batch.types());
  check_plan(result.plan);
  for (const nn::NamedVariable& p : model.parameters())
    for (double value : values_of(p.variable)) result.weights.push_back(value);
  return result;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0, scale = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i)
    sum += (a[i] - b[i]) * (a[i] - b[i]), scale += b[i] * b[i];
  return std::sqrt(sum / scale);
}

// Sums in another order: float32 rounds in the seventh digit.
TEST(Accumulate, EqualsTheWholeBatch) {
  for (std::int64_t items : {8, 11}) {
    const Step whole = step_with(1, items);
    for (std::int64_t parts : {2, 3, 4, 7}) {
      SCOPED_TRACE(std::to_string(items) + " items in " + std::to_string(parts));
      const Step cut = step_with(parts, items);
      EXPECT_LT(distance(cut.weights, whole.weights), 1e-6);
      EXPECT_NEAR(cut.loss, whole.loss, 1e-6 * whole.loss);
    }
  }
  EXPECT_LT(distance(step_with(3, 7, {}, f64).weights, step_with(1, 7, {}, f64).weights), 1e-14);
}

TEST(Accumulate, WorksWithClippingAndRecomputation) {
  TrainOptions options;
  options.clip_norm = 0.1;
  const Step whole = step_with(1, 9, options), cut = step_with(4, 9, options);
  EXPECT_LT(distance(cut.weights, whole.weights), 1e-6);
  for (const char* mode : {"blocks", "sqrt", "segment=2", "selective"}) {
    options.compile.plan.recompute = Recompute::parse(mode);
    const Step again = step_with(4, 9, options);
    EXPECT_EQ(again.weights, cut.weights) << mode;
    EXPECT_GT(again.plan.recomputed_nodes(), 0) << mode;
  }
}

TEST(Accumulate, MorePartsThanItems) {
  EXPECT_LT(distance(step_with(8, 3).weights, step_with(1, 3).weights), 1e-6);
}

TEST(Accumulate, ActivationsShrinkWithTheParts) {
  const auto activations = [](std::int64_t parts) {
    return static_cast<double>(step_with(parts, 64).plan.at_peak[Category::activations].count);
  };
  const double whole = activations(1);
  EXPECT_LT(activations(2), 0.55 * whole);
  EXPECT_LT(activations(4), 0.30 * whole);
  EXPECT_LT(activations(8), 0.18 * whole);
}

TEST(Accumulate, ABatchThatCannotBeCut) {
  auto model = make<nn::Linear>(device::cpu, f32, nn::root_place(), 4, 4);
  TrainStep step(model, optim::SGD{},
                 [&](const Batch& b) { return mean(model(b.x()) * sum(b.y())); },
                 {.schedule = optim::constant(), .clip_norm = {}, .accumulate = 2, .compile = {}});
  expect_error([&] { step.plan({{{4, 4}, f32}, {{3}, f32}}); }, {"micro-batches", "4 and 3"});
}

}  // namespace
}  // namespace ebb::test
