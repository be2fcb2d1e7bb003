// Training steps on several ranks, which are threads here: the same bits as on one rank, and the
// planned memory.
#include "ebb/train/ranks.h"

#include <gtest/gtest.h>

#include "ebb/data/generated.h"
#include "ebb/data/part.h"
#include "ebb/ebb.h"
#include "ebb/models/gpt2.h"
#include "ebb/train/train_step.h"
#include "support/op_check.h"
#include "support/rank_training.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;

TEST(Ranks, LeavesAreDividedEvenly) {
  const auto of = [](std::int64_t leaves, int ranks) {
    return LeafBlocks::of({.leaves = leaves, .count = ranks});
  };
  const auto expect = [&](std::int64_t leaves, int ranks, std::int64_t block, std::int64_t own) {
    const LeafBlocks blocks = of(leaves, ranks);
    EXPECT_EQ(blocks.block, block) << leaves << " leaves on " << ranks;
    EXPECT_EQ(blocks.own, own) << leaves << " leaves on " << ranks;
  };
  expect(8, 1, 8, 1), expect(8, 2, 4, 1), expect(8, 4, 2, 1), expect(8, 8, 1, 1);
  expect(8, 3, 1, 3), expect(4, 3, 2, 1), expect(12, 3, 4, 1), expect(12, 2, 2, 3);
  expect(6, 2, 1, 3), expect(3, 3, 1, 1), expect(5, 2, 1, 3);
  expect_error([&] { of(2, 3); }, {"3 ranks", "2 leaves"});
  expect_error([&] { of(0, 1); }, {"at least 1 leaf"});
}

// The tree of leaves is one sum of all of them, whatever its order.
TEST(Ranks, LeavesEqualTheWholeBatch) {
  const RankResult whole = train({.leaves = 1}, nullptr), cut = train({.leaves = 6}, nullptr);
  EXPECT_NEAR(cut.losses.back(), whole.losses.back(), 1e-5);  // sums in another order
}

TEST(Ranks, TheNumberOfRanksChangesNoBit) {
  for (const RankTraining& run :
       {RankTraining{}, RankTraining{.leaves = 6, .optimizer = "sgd", .clip = 0.3},
        RankTraining{.dropout = 0.2, .clip = 0.5}}) {
    const RankResult alone = train(run, nullptr);
    for (const int ranks : {2, 3, 4})
      for (const Shard shard : {Shard::nothing, Shard::state}) {
        RankTraining shared = run;
        shared.ranks = ranks, shared.shard = shard;
        expect_same_bits(shared, alone);
      }
  }
}

TEST(Ranks, OptimizersAndPrecisions) {
  for (const RankTraining& run :
       {RankTraining{.optimizer = "lion"}, RankTraining{.precision = Precision::split_bf16},
        RankTraining{.clip = 1.0, .precision = Precision::mixed_bf16}}) {
    RankTraining shared = run;
    shared.ranks = 3, shared.shard = Shard::state;
    expect_same_bits(shared, train(run, nullptr));
  }
  RankTraining whole{.optimizer = "adafactor"};
  const RankResult alone = train(whole, nullptr);
  whole.ranks = 2;
  expect_same_bits(whole, alone);
}

TEST(Ranks, ABudgetChangesNoBit) {
  RankTraining run{.leaves = 2, .batch = 24};
  const RankResult alone = train(run, nullptr);
  run.ranks = 2, run.shard = Shard::state;
  const RankResult free = on_ranks(run).front();
  run.budget = free.peak - Bytes{free.peak.count / 50};
  const std::vector<RankResult> tight = on_ranks(run);
  EXPECT_LT(tight.front().peak, free.peak);
  for (const RankResult& result : tight) EXPECT_EQ(result.losses, alone.losses);
}

TEST(Ranks, ShardedStateIsDivided) {
  RankTraining run{.ranks = 4, .width = 64};  // ranges of small tensors are mostly filling
  const Bytes whole = on_ranks(run).front().state;
  run.shard = Shard::state;
  for (const RankResult& result : on_ranks(run)) EXPECT_LT(result.state, whole / 2);
}

TEST(Ranks, CheckpointsAreOfNoNumberOfRanks) {
  const TemporaryFolder folder;
  const fs::path file = folder / "run.safetensors";
  const RankResult alone = train({.steps = 4}, nullptr);
  std::int64_t step = 0;
  for (const auto& [ranks, shard] :
       {std::pair{4, Shard::state}, {2, Shard::nothing}, {1, Shard::nothing}, {3, Shard::state}}) {
    RankTraining run{.ranks = ranks, .shard = shard};
    run.steps = step + 1;
    if (step > 0) run.resume = file;
    run.save = file;
    const std::vector<RankResult> results = on_ranks(run);
    for (const RankResult& result : results)
      EXPECT_EQ(result.losses, std::vector{alone.losses[static_cast<std::size_t>(step)]});
    if (++step == 4) {
      EXPECT_EQ(results.front().weights, alone.weights);
    }
  }
}

TEST(Ranks, RefusesWhatCannotBeShared) {
  RankTraining run{.ranks = 2, .shard = Shard::state};
  run.optimizer = "adafactor";
  expect_error([&] { train(run, nullptr); }, {"adafactor", "cannot be sharded"});
  run.optimizer = "adamw", run.precision = Precision::pure_bf16;
  expect_error([&] { train(run, nullptr); }, {"stochastically"});
  TrainOptions options;
  options.ranks.count = 2;
  auto model = make<models::Gpt2>(
      device::cpu, f32,
      models::Gpt2Config{.vocabulary = 5, .context = 4, .layers = 1, .heads = 1, .width = 4});
  const auto make_step = [&] {
    TrainStep(
        model, optim::SGD{}, [&](const Batch& b) { return model.loss(b.x(), b.y()); }, options);
  };
  expect_error(make_step, {"leaves", "0"});
  options.ranks.leaves = 2, options.accumulate = 2;
  expect_error(make_step, {"leaves", "accumulate"});
}

// Every rank reads its part of one order.
TEST(Ranks, PartsOfBatchesAreTheirItems) {
  const auto whole = std::make_shared<data::MarkovText>(data::MarkovOptions{.windows = 64});
  std::vector<std::int64_t> items;
  for (std::int64_t i = 0; i < 8; ++i) items.push_back(3 * i + 1);
  const Batch all = whole->batch(items, {});
  for (int rank = 0; rank < 2; ++rank) {
    const RankOptions options{.leaves = 4, .count = 2, .rank = rank};
    const auto part = data::part_of_batches(whole, 8, options);
    const Batch own = part->batch(items, {});
    EXPECT_EQ(own.types(), part->types(8));
    EXPECT_EQ(values_of(own.x()), values_of(eval(slice(all.x(), 0, 4 * rank, 4 * rank + 4))));
  }
  expect_error([&] { data::part_of_batches(whole, 7, {.leaves = 2, .count = 2}); },
               {"7 items", "2 leaves"});
}

}  // namespace
}  // namespace ebb::test
