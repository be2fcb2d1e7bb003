// Training steps on several ranks, which are threads here: the same bits as on one, and the memory
// that was planned.
#include "ebb/dist/ranks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "ebb/communicator.h"
#include "ebb/data/generated.h"
#include "ebb/data/part.h"
#include "ebb/ebb.h"
#include "ebb/io/checkpoint.h"
#include "ebb/models/gpt2.h"
#include "ebb/optim/by_name.h"
#include "ebb/train/train_step.h"
#include "support/op_check.h"
#include "support/plan_check.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t length = 6, vocabulary = 53;  // no multiples of ranges

struct Training {
  std::int64_t leaves = 4;
  int ranks = 1;
  Shard shard = Shard::nothing;
  std::string optimizer = "adamw";
  double dropout = 0.0;
  std::optional<double> clip = {};
  Precision precision = Precision::fp32;
  std::int64_t steps = 2, batch = 12, width = 10;
  std::optional<Bytes> budget = {};
  fs::path resume = {}, save = {};
};

struct Result {
  std::vector<double> losses;
  std::vector<double> weights;
  Bytes peak, held, state;
};

Tensor ids(std::uint64_t key, std::int64_t items) {
  return eval(cast(random_uniform({items, length}, 0.0, static_cast<double>(vocabulary), f32,
                                  device::cpu, RandomKey{key}),
                   i64));
}

// The items of a rank's leaves.
Tensor own_part(const Tensor& batch, const RankOptions& options) {
  const LeafBlocks blocks = LeafBlocks::of(options);
  const std::int64_t size = batch.shape()[0] / blocks.leaves;
  std::vector<Tensor> leaves;
  for (std::int64_t place = 0; place < blocks.per_rank(); ++place) {
    const std::int64_t leaf = blocks.leaf(options.rank, place);
    leaves.push_back(slice(batch, 0, leaf * size, (leaf + 1) * size));
  }
  return eval(concat(leaves, 0));
}

Result train(const Training& run, const std::shared_ptr<Communicator>& communicator) {
  const models::Gpt2Config config{.vocabulary = vocabulary,
                                  .context = length,
                                  .layers = 1,
                                  .heads = 2,
                                  .width = run.width,
                                  .dropout = run.dropout};
  auto model = make<models::Gpt2>(device::cpu, parameter_dtype(run.precision), config);
  TrainOptions options;
  options.ranks = {.leaves = run.leaves,
                   .count = run.ranks,
                   .rank = communicator ? communicator->rank() : 0,
                   .shard = run.shard};
  options.clip_norm = run.clip;
  options.precision = run.precision;
  options.compile.communicator = communicator;
  options.compile.plan.budget = run.budget;
  TrainStep step(
      model, optim::by_name(run.optimizer, 0.05),
      [&](const Batch& b) { return model.loss(b.x(), b.y()); }, options);
  if (!run.resume.empty()) io::load_checkpoint(run.resume, model, step);
  Result result;
  std::vector<TensorType> types;
  while (step.step() < run.steps) {
    const std::uint64_t key = 2 * static_cast<std::uint64_t>(step.step());
    const Batch batch{{own_part(ids(key, run.batch), options.ranks),
                       own_part(ids(key + 1, run.batch), options.ranks)}};
    types = batch.types();
    result.losses.push_back(step(batch).loss);
  }
  if (!run.save.empty()) io::save_checkpoint(run.save, model, step);
  const Plan& plan = step.plan(types);
  check_plan(plan);
  result.peak = plan.peak, result.held = step.resident(types);
  for (const auto& [path, state] : step.optimizer_state().all())
    result.state += state.type().bytes();
  for (const nn::NamedVariable& p : model.parameters())
    for (const double value : values_of(p.variable)) result.weights.push_back(value);
  return result;
}

// All ranks' results.
std::vector<Result> on_ranks(const Training& run) {
  if (run.ranks == 1) return {train(run, nullptr)};
  auto ranks = dist::thread_ranks(run.ranks);
  std::vector<Result> results(ranks.size());
  std::vector<std::exception_ptr> errors(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    threads.emplace_back([&, r, own = std::move(ranks[r])]() mutable {
      try {
        results[r] = train(run, own);
      } catch (...) {
        errors[r] = std::current_exception();
      }
      own.reset();
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  return results;
}

void expect_same_bits(const Training& run, const Result& alone) {
  SCOPED_TRACE(fmt::format("{} ranks, {} leaves, shard {}, {}", run.ranks, run.leaves,
                           static_cast<int>(run.shard), run.optimizer));
  for (const Result& result : on_ranks(run)) {
    EXPECT_EQ(result.losses, alone.losses);
    EXPECT_EQ(result.weights, alone.weights);
    EXPECT_EQ(result.held, result.peak);
  }
}

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
  const Result whole = train({.leaves = 1}, nullptr), cut = train({.leaves = 6}, nullptr);
  EXPECT_NEAR(cut.losses.back(), whole.losses.back(), 1e-5);  // sums in another order
}

TEST(Ranks, TheNumberOfRanksChangesNoBit) {
  for (const Training& run : {Training{}, Training{.leaves = 6, .optimizer = "sgd", .clip = 0.3},
                              Training{.dropout = 0.2, .clip = 0.5}}) {
    const Result alone = train(run, nullptr);
    for (const int ranks : {2, 3, 4})
      for (const Shard shard : {Shard::nothing, Shard::state}) {
        Training shared = run;
        shared.ranks = ranks, shared.shard = shard;
        expect_same_bits(shared, alone);
      }
  }
}

TEST(Ranks, OptimizersAndPrecisions) {
  for (const Training& run :
       {Training{.optimizer = "lion"}, Training{.precision = Precision::split_bf16},
        Training{.clip = 1.0, .precision = Precision::mixed_bf16}}) {
    Training shared = run;
    shared.ranks = 3, shared.shard = Shard::state;
    expect_same_bits(shared, train(run, nullptr));
  }
  Training whole{.optimizer = "adafactor"};
  const Result alone = train(whole, nullptr);
  whole.ranks = 2;
  expect_same_bits(whole, alone);
}

TEST(Ranks, ABudgetChangesNoBit) {
  Training run{.leaves = 2, .batch = 24};
  const Result alone = train(run, nullptr);
  run.ranks = 2, run.shard = Shard::state;
  const Result free = on_ranks(run).front();
  run.budget = free.peak - Bytes{free.peak.count / 50};
  const std::vector<Result> tight = on_ranks(run);
  EXPECT_LT(tight.front().peak, free.peak);
  for (const Result& result : tight) EXPECT_EQ(result.losses, alone.losses);
}

TEST(Ranks, ShardedStateIsDivided) {
  Training run{.ranks = 4, .width = 64};  // ranges of small tensors are mostly filling
  const Bytes whole = on_ranks(run).front().state;
  run.shard = Shard::state;
  for (const Result& result : on_ranks(run)) EXPECT_LT(result.state, whole / 2);
}

TEST(Ranks, CheckpointsAreOfNoNumberOfRanks) {
  const TemporaryFolder folder;
  const fs::path file = folder / "run.safetensors";
  const Result alone = train({.steps = 4}, nullptr);
  std::int64_t step = 0;
  for (const auto& [ranks, shard] :
       {std::pair{4, Shard::state}, {2, Shard::nothing}, {1, Shard::nothing}, {3, Shard::state}}) {
    Training run{.ranks = ranks, .shard = shard};
    run.steps = step + 1;
    if (step > 0) run.resume = file;
    run.save = file;
    const std::vector<Result> results = on_ranks(run);
    for (const Result& result : results)
      EXPECT_EQ(result.losses, std::vector{alone.losses[static_cast<std::size_t>(step)]});
    if (++step == 4) {
      EXPECT_EQ(results.front().weights, alone.weights);
    }
  }
}

TEST(Ranks, RefusesWhatCannotBeShared) {
  Training run{.ranks = 2, .shard = Shard::state};
  run.optimizer = "adafactor";
  expect_error([&] { train(run, nullptr); }, {"adafactor", "cannot be sharded"});
  run.optimizer = "adamw8bit";
  expect_error([&] { train(run, nullptr); }, {"adamw8bit", "cannot be sharded"});
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
