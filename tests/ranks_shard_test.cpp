// Gradients and weights that are divided among ranks: the bits of one rank, the planned memory, and
// less of it.
#include <gtest/gtest.h>

#include "ebb/dist/ranks.h"
#include "ebb/ebb.h"
#include "ebb/models/gpt2.h"
#include "ebb/threads.h"
#include "ebb/train/train_step.h"
#include "ops/collective/collective.h"
#include "support/op_check.h"
#include "support/rank_training.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

constexpr Shard stages[] = {Shard::nothing, Shard::state, Shard::gradients, Shard::parameters};

// The gradient of a convolution's weight depends on the number of threads.
class OneThread {
 public:
  OneThread() : before_(threads()) { set_threads(1); }
  ~OneThread() { set_threads(before_); }

 private:
  int before_;
};

class ShardedModels : public testing::TestWithParam<const char*> {};

TEST_P(ShardedModels, StagesAndRanksChangeNoBit) {
  const OneThread one;
  for (const Precision precision : {Precision::fp32, Precision::split_bf16})
    for (const std::int64_t leaves : {4, 8}) {
      RankTraining run{
          .model = GetParam(), .leaves = leaves, .precision = precision, .batch = 8, .width = 12};
      const RankResult alone = train(run, nullptr);
      for (const int ranks : {2, 3, 4})
        for (const Shard shard : stages) {
          run.ranks = ranks, run.shard = shard;
          expect_same_bits(run, alone);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardedModels, testing::Values("gpt2", "llama", "resnet"),
                         [](const auto& model) { return std::string(model.param); });

// Dropout, clipping, uneven leaves, other optimizers and half precisions.
TEST(RankShards, WhatElseAStepDoesChangesNoBit) {
  for (const RankTraining& run :
       {RankTraining{.leaves = 6, .dropout = 0.2, .clip = 0.3},
        RankTraining{
            .leaves = 12, .optimizer = "sgd", .clip = 0.5, .precision = Precision::mixed_bf16},
        RankTraining{.leaves = 4, .optimizer = "lion", .precision = Precision::mixed_fp16}}) {
    const RankResult alone = train(run, nullptr);
    RankTraining shared = run;
    for (const int ranks : {2, 3})
      for (const Shard shard : {Shard::gradients, Shard::parameters}) {
        shared.ranks = ranks, shared.shard = shard;
        expect_same_bits(shared, alone);
      }
  }
}

// Blocks of quantised state lie within one range, and small parameters are not quantised, whatever
// their ranges.
TEST(RankShards, QuantisedStateIsDivided) {
  for (const char* optimizer : {"adamw8bit", "adamw4bit"}) {
    RankTraining run{.leaves = 6, .optimizer = optimizer, .batch = 6, .width = 40};
    const RankResult alone = train(run, nullptr);
    for (const auto& [ranks, shard] : {std::pair{2, Shard::state}, {3, Shard::parameters}}) {
      run.ranks = ranks, run.shard = shard;
      expect_same_bits(run, alone);
      EXPECT_LT(on_ranks(run).front().state, alone.state);
    }
  }
}

// Weights are freed between forward and backward, and gathered again; also with a budget.
TEST(RankShards, WeightsAreGatheredAgain) {
  RankTraining run{.model = "llama", .leaves = 2, .batch = 4, .width = 64};
  const RankResult alone = train(run, nullptr);
  run.ranks = 2, run.shard = Shard::parameters;
  const RankResult free = on_ranks(run).front();
  EXPECT_GT(free.gathered_again, 0);
  run.budget = free.peak - Bytes{free.peak.count / 16};
  expect_same_bits(run, alone);
  EXPECT_GT(on_ranks(run).front().gathered_again, 0);
}

TEST(RankShards, EachStageKeepsLess) {
  RankTraining run{.model = "llama", .leaves = 8, .ranks = 4, .batch = 8, .width = 64};
  std::vector<RankResult> results;
  for (const Shard shard : stages) {
    run.shard = shard;
    results.push_back(on_ranks(run).front());
  }
  EXPECT_LT(results[1].kept, results[0].kept);
  EXPECT_EQ(results[2].kept, results[1].kept);
  EXPECT_LT(results[3].kept, results[2].kept);
  for (std::size_t s = 1; s < results.size(); ++s)
    EXPECT_LT(results[s].peak, results[s - 1].peak) << s;
}

TEST(RankShards, CheckpointsAreOfNoStage) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / "run.safetensors";
  const RankResult alone = train({.steps = 5}, nullptr);
  std::int64_t step = 0;
  for (const auto& [ranks, shard] : {std::pair{4, Shard::parameters},
                                     {2, Shard::gradients},
                                     {3, Shard::parameters},
                                     {1, Shard::nothing},
                                     {2, Shard::parameters}}) {
    RankTraining run{.ranks = ranks, .shard = shard, .steps = step + 1, .save = file};
    if (step > 0) run.resume = file;
    const std::vector<RankResult> results = on_ranks(run);
    for (const RankResult& result : results)
      EXPECT_EQ(result.losses, std::vector{alone.losses[static_cast<std::size_t>(step)]});
    if (++step == 5) {
      EXPECT_EQ(results.front().weights, alone.weights);
    }
  }
}

// Leaves are dealt to the ranks in turn, so the leaves at one place are adjacent in the tree.
TEST(RankShards, EveryLeafHasOneSeat) {
  for (const int ranks : {2, 3, 4, 5})
    for (const std::int64_t leaves : {5, 6, 8, 12})
      for (const Shard shard : {Shard::state, Shard::gradients}) {
        const LeafBlocks blocks =
            LeafBlocks::of({.leaves = leaves, .count = ranks, .rank = 0, .shard = shard});
        for (std::int64_t leaf = 0; leaf < leaves; ++leaf) {
          const LeafBlocks::Seat seat = blocks.seat(leaf);
          EXPECT_LT(seat.rank, ranks);
          EXPECT_LT(seat.place, blocks.per_rank());
          EXPECT_EQ(blocks.leaf(static_cast<int>(seat.rank), seat.place), leaf);
        }
      }
}

TEST(RankShards, AModelsWeightsBelongToOneStep) {
  auto model = make<models::Gpt2>(
      device::cpu, f32,
      models::Gpt2Config{.vocabulary = 5, .context = 4, .layers = 1, .heads = 1, .width = 4});
  TrainOptions options;
  options.ranks = {.leaves = 2, .count = 2, .rank = 0, .shard = Shard::parameters};
  const auto make_step = [&] {
    return TrainStep(
        model, optim::SGD{}, [&](const Batch& b) { return model.loss(b.x(), b.y()); }, options);
  };
  TrainStep step = make_step();
  for (const nn::NamedVariable& p : step.weights())
    EXPECT_EQ(p.variable.shape().elements() % range_alignment, 0) << p.path;
  expect_error([&] { values_of(model.parameters().front().variable); }, {"neither a value"});
  expect_error([&] { make_step(); }, {"another training step"});
}

}  // namespace
}  // namespace ebb::test
