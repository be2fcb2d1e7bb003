// Layers of the pattern 2:4 in training: only live weights have optimizer state.
#include "ebb/nn/pair_linear.h"

#include <gtest/gtest.h>

#include "ebb/ebb.h"
#include "ebb/io/checkpoint.h"
#include "ebb/optim/by_name.h"
#include "support/op_check.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

template <class Layer>
struct Net : nn::Module<Net<Layer>> {
  explicit Net(std::int64_t size) : width(size) {}
  std::int64_t width;
  Layer in{this->at("in"), width, width}, out{this->at("out"), width, width};
  Tensor forward(const Tensor& x) { return out(relu(in(x))); }
};
using Pairs = Net<nn::PairLinear>;
using Dense = Net<nn::Linear>;

Batch batch_of(std::int64_t width, std::uint64_t seed) {
  return {{eval(random_normal({16, width}, 0.0, 1.0), seed),
           eval(random_normal({16, width}, 0.0, 1.0), seed + 1)}};
}

template <class Model>
LossFunction loss_of(Model& model) {
  return [&model](const Batch& b) { return mean(square(model(b.x()) - b.y())); };
}

template <class Model>
Plan plan_of(Model& model, const std::string& optimizer) {
  TrainStep step(model, optim::by_name(optimizer), loss_of(model));
  return step.plan(batch_of(model.width, 1).types());
}

// Planned weights, gradients and state for every kind of optimizer; the memory held equals the
// plan.
TEST(PairLinear, StateIsOfWhatLives) {
  constexpr std::int64_t width = 512;  // a weight of 1 MiB; what is not halved is a few KiB
  auto pairs = make<Pairs>(device::cpu, f32, width);
  auto dense = make<Dense>(device::cpu, f32, width);
  for (const char* name : {"adamw", "adam", "sgd", "lion", "adamw8bit"}) {
    const Plan half = plan_of(pairs, name), whole = plan_of(dense, name);
    const auto ratio = [&](Category c) {
      return static_cast<double>(half.at_peak[c].count) /
             static_cast<double>(whole.at_peak[c].count);
    };
    // float32 values are half, positions one bit of 32 for each weight: 17/32.
    EXPECT_NEAR(ratio(Category::weights), 17.0 / 32.0, 0.02) << name;
    if (whole.at_peak[Category::optimizer] > 1_MiB) {
      EXPECT_NEAR(ratio(Category::optimizer), 0.5, 0.02) << name;
    }
    EXPECT_LT(half.peak, whole.peak) << name;
  }
  auto model = make<Pairs>(device::cpu, f32, width);
  TrainStep step(model, optim::AdamW{.lr = 0.01}, loss_of(model));
  for (std::uint64_t i = 0; i < 3; ++i) step(batch_of(width, i));
  const auto types = batch_of(width, 1).types();
  EXPECT_EQ(step.resident(types), step.plan(types).peak);
}

// The updates are those of a dense layer whose zeros are kept zero by masks.
TEST(PairLinear, TrainsAsADenseLayerWithMasks) {
  auto pairs = make<Pairs>(device::cpu, f64, 24);
  auto dense = make<Dense>(device::cpu, f64, 24);
  for (auto [from, to] : {std::pair(&dense.in, &pairs.in), {&dense.out, &pairs.out}}) {
    from->weight.materialise(), from->bias.materialise();
    to->assign(from->weight);
    to->bias.assign(from->bias);
    from->weight.assign(eval(to->dense()));
  }
  TrainOptions options;
  options.sparse = SparseTraining{};
  options.sparse->pattern = Pattern{2, 4};
  options.sparse->schedule = MaskSchedule::constant;
  TrainStep one(pairs, optim::AdamW{.lr = 0.01}, loss_of(pairs)),
      other(dense, optim::AdamW{.lr = 0.01}, loss_of(dense), options);
  for (std::uint64_t i = 0; i < 5; ++i) {
    Batch batch = batch_of(24, i);
    for (Tensor& t : batch.tensors) t = eval(cast(t, f64));
    EXPECT_NEAR(one(batch).loss, other(batch).loss, 1e-12) << i;  // products add in other orders
  }
  const auto a = values_of(pairs.in.dense()), b = values_of(dense.in.weight);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-12) << i;
}

TEST(PairLinear, CheckpointsHaveThePositions) {
  const TemporaryFolder folder;
  auto model = make<Pairs>(device::cpu, f32, std::int64_t{16}),
       again = make<Pairs>(device::cpu, f32, std::int64_t{16});
  model.in.assign(eval(random_normal({16, 16}, 0.0, 1.0), 5));
  TrainStep step(model, optim::AdamW{.lr = 0.01}, loss_of(model)),
      next(again, optim::AdamW{.lr = 0.01}, loss_of(again));
  step(batch_of(16, 1));
  io::save_checkpoint(folder / "x", model, step, {});
  io::load_checkpoint(folder / "x", again, next);
  EXPECT_EQ(values_of(again.in.dense()), values_of(model.in.dense()));
  const Batch batch = batch_of(16, 2);
  EXPECT_EQ(next(batch).loss, step(batch).loss);
}

TEST(PairLinear, Errors) {
  expect_error([] { nn::PairLinear(nn::root_place(), 6, 4); }, {"multiple of 4", "6"});
  nn::PairLinear layer(nn::root_place(), 8, 4);
  expect_error([&] { layer.assign(zeros({4, 4})); }, {"(4, 8)", "(4, 4)"});
}

}  // namespace
}  // namespace ebb::test
