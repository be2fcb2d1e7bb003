// Multilevel programs whose batches are shared by several ranks, which are threads here: every
// method's hypergradients are those of the whole batch, and have the same bits on any number of
// ranks.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ebb/communicator.h"
#include "ebb/nn/layers.h"
#include "ebb/optim/adam.h"
#include "ebb/optim/sgd.h"
#include "support/mlo_problems.h"
#include "support/plan_check.h"
#include "support/temporary_folder.h"
#include "support/thread_ranks.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using mlo::Config;
using mlo::Method;

constexpr std::int64_t width = 3, items = 12;

// Rows of a batch; a rank has those of its leaves.
struct Rows {
  RankOptions ranks;
  std::uint64_t key;

  Batch at(std::int64_t number) const {
    const auto all = [&](const Shape& shape, std::uint64_t which) {
      return random_uniform(shape, -1.0, 1.0, f64, device::cpu,
                            RandomKey{key + 2 * static_cast<std::uint64_t>(number) + which});
    };
    return {{own(all({items, width}, 0)), own(all({items}, 1))}};
  }
  std::vector<TensorType> types() const { return at(0).types(); }

 private:
  Tensor own(const Tensor& batch) const {
    if (!ranks.any()) return eval(batch);
    const LeafBlocks blocks = LeafBlocks::of(ranks);
    const std::int64_t size = items / blocks.leaves;
    std::vector<Tensor> leaves;
    for (std::int64_t place = 0; place < blocks.per_rank(); ++place) {
      const std::int64_t begin = blocks.leaf(ranks.rank, place) * size;
      leaves.push_back(slice(batch, 0, begin, begin + size));
    }
    return eval(concat(leaves, 0));
  }
};

struct RowProblem : mlo::Problem {
  using Loss = std::function<mlo::StepOutput(const Tensor& x, const Tensor& y)>;
  RowProblem(const std::string& name, Point& at, const optim::Optimizer& optimizer,
             const Config& config, const Rows& r, Loss l)
      : Problem(name, at, optimizer, {config, optim::constant(), {}}),
        rows(r),
        loss(std::move(l)) {}
  mlo::StepOutput training_step(const Batch& b) override { return loss(b.x(), b.y()); }
  Batch get_batch() override { return rows.at(next++); }
  std::vector<TensorType> batch_types() const override { return rows.types(); }
  std::string save_state() const override { return std::to_string(next); }
  void restore_state(const std::string& state) override { next = std::stoll(state); }

  Rows rows;
  Loss loss;
  std::int64_t next = 0;
};

struct Levels {
  Config lower = {}, middle = {};
  std::string optimizer = "adam";
  std::int64_t leaves = 0;
  int ranks = 1;
  std::int64_t steps = 4;
  bool samples = false;     // the lowest level reads samples of the middle one's distribution
  bool three = true;        // there is a third level
  bool first_order = true;  // of the highest level
  bool roll_back = false;
  fs::path resume = {}, save = {};
};

struct Result {
  Row numbers;  // weights of all levels, last losses and metrics
  Bytes planned, held;
};

Tensor predicted(const Tensor& x, const Tensor& w) {
  return reshape(matmul(x, reshape(w, {width, 1})), {-1});
}

// w fits rows with weights that λ gives; λ's loss is on other rows; μ regularises λ's loss.
Result trained(const Levels& run, const std::shared_ptr<Communicator>& communicator) {
  mlo::EngineConfig config;
  config.ranks = {
      .leaves = run.leaves, .count = run.ranks, .rank = communicator ? communicator->rank() : 0};
  config.compile.communicator = communicator;
  config.roll_back = run.roll_back;
  const auto rows = [&](std::uint64_t key) { return Rows{config.ranks, key << 32}; };
  Point w({0.3, -0.2, 0.5}), lambda({0.4, -0.3, 0.2}), mu({0.1, 0.2, 0.3});
  const optim::Optimizer below = run.optimizer == "adam"
                                     ? optim::Optimizer(optim::Adam{.lr = 0.02})
                                     : optim::Optimizer(optim::SGD{.lr = 0.1, .momentum = 0.5});
  RowProblem lower("lower", w, below, run.lower, rows(1), [&](const Tensor& x, const Tensor& y) {
    const Tensor weight = sigmoid(predicted(x, lambda.value));
    const Tensor losses = square(predicted(x, w.value) - y);
    mlo::StepOutput output;
    if (run.samples) {
      const Tensor z =
          stop_gradient(cast(less(random_uniform(losses.shape(), 0.0, 1.0, f64), weight), f64));
      output.item_losses = losses * z;
      output.log_probability = z * log(weight) + (1.0 - z) * log(1.0 - weight);
    } else {
      output.item_losses = losses * weight;
    }
    output.loss = mean(output.item_losses) + sum_squares(w.value) * 0.1;
    output.metrics["unweighted"] = mean(losses);
    return output;
  });
  RowProblem middle("middle", lambda, optim::Adam{.lr = 0.05}, run.middle, rows(2),
                    [&](const Tensor& x, const Tensor& y) {
                      return mean(square(predicted(x, w.value) - y)) +
                             (run.three ? sum(square(lambda.value) * exp(mu.value)) * 0.05
                                        : sum_squares(lambda.value) * 0.05);
                    });
  RowProblem upper("upper", mu, optim::Adam{.lr = 0.05}, {.first_order = run.first_order}, rows(3),
                   [&](const Tensor& x, const Tensor& y) {
                     return mean(square(predicted(x, lambda.value) + predicted(x, w.value) - y)) +
                            sum_squares(mu.value) * 0.01;
                   });
  std::vector<mlo::Problem*> problems{&lower, &middle};
  mlo::Dependencies dependencies{.u2l = {{"middle", {"lower"}}}, .l2u = {{"lower", {"middle"}}}};
  if (run.three) {
    problems.push_back(&upper);
    dependencies = {.u2l = {{"middle", {"lower"}}, {"upper", {"middle"}}},
                    .l2u = {{"lower", {"middle", "upper"}}, {"middle", {"upper"}}}};
  }
  mlo::Engine engine(problems, dependencies, config);
  if (!run.resume.empty()) engine.load(run.resume);
  Result result;
  const auto plan = engine.plan();
  for (const auto& level : plan.levels) check_plan(level.plan);
  result.planned = plan.peak;
  while (engine.global_step() < run.steps) engine.train_step();
  if (!run.save.empty()) engine.save(run.save);
  result.held = engine.resident();
  for (const Point* point : {&w, &lambda, &mu})
    for (const double value : point->get()) result.numbers.push_back(value);
  for (const mlo::Problem* problem : problems)
    for (const auto& [key, value] : problem->last()) result.numbers.push_back(value);
  return result;
}

std::vector<Result> on_ranks(const Levels& run) {
  if (run.ranks == 1) return {trained(run, nullptr)};
  return on_threads<Result>(run.ranks,
                            [&](const auto& communicator) { return trained(run, communicator); });
}

void expect_same_bits(Levels run, const std::vector<int>& counts = {2, 3, 4}) {
  run.leaves = 4;
  const Result alone = trained(run, nullptr);
  EXPECT_EQ(alone.held, alone.planned);
  for (const int ranks : counts) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    run.ranks = ranks;
    for (const Result& result : on_ranks(run)) {
      EXPECT_EQ(result.numbers, alone.numbers);
      EXPECT_EQ(result.held, result.planned);
    }
  }
}

const std::vector<std::pair<Method, const char*>> methods{{Method::darts, "darts"},
                                                          {Method::sama, "sama"},
                                                          {Method::neumann, "neumann"},
                                                          {Method::cg, "cg"},
                                                          {Method::unrolled, "unrolled"}};

Config config_of(Method method) {
  return {.type = method, .unroll_steps = method == Method::unrolled ? 2 : 1};
}

TEST(MultilevelRanks, TheNumberOfRanksChangesNoBit) {
  for (const auto& [method, name] : methods)
    for (const bool three : {false, true}) {
      SCOPED_TRACE(fmt::format("{}, {} levels", name, three ? 3 : 2));
      expect_same_bits({.lower = config_of(method), .middle = config_of(method), .three = three});
    }
}

// Hypergradients through the whole gradient of the level between, whose sums over ranks are
// differentiated themselves.
TEST(MultilevelRanks, SecondOrderPaths) {
  for (const auto& [method, name] : methods) {
    SCOPED_TRACE(name);
    expect_same_bits({.lower = config_of(method),
                      .middle = config_of(method == Method::unrolled ? Method::cg : method),
                      .first_order = false},
                     {3});
  }
}

TEST(MultilevelRanks, SamplesBelongToALeaf) {
  expect_same_bits({.lower = {.type = Method::reinforce}, .samples = true, .three = false});
}

TEST(MultilevelRanks, AccumulationClippingAndRollingBack) {
  for (const Method method : {Method::darts, Method::unrolled}) {
    Config config = config_of(method);
    config.gradient_accumulation = 2, config.gradient_clipping = 0.05;
    expect_same_bits({.lower = config, .optimizer = "sgd", .steps = 9, .three = false}, {3});
    expect_same_bits({.lower = config_of(method), .middle = config, .steps = 9, .roll_back = true},
                     {2});
  }
}

// The sum over leaves is the whole batch, so that hypergradients are those of one process.
TEST(MultilevelRanks, LeavesGiveTheWholeBatch) {
  for (const auto& [method, name] : methods)
    for (const bool first_order : {true, false}) {
      SCOPED_TRACE(name);
      Levels run{.lower = config_of(method),
                 .middle = config_of(method == Method::unrolled ? Method::cg : method),
                 .optimizer = "sgd",
                 .steps = 4,
                 .first_order = first_order};
      const Row whole = trained(run, nullptr).numbers;
      run.leaves = 6;
      // Sums in another order; finite differences divide their rounding by the step, 0.01.
      EXPECT_LT(distance(trained(run, nullptr).numbers, whole), 1e-9);
    }
}

// A checkpoint does not depend on the number of ranks, even between the updates of an inner loop.
TEST(MultilevelRanks, ResumesOnAnotherNumberOfRanks) {
  Config lower = config_of(Method::unrolled);
  lower.unroll_steps = 3, lower.gradient_accumulation = 2;
  Levels run{.lower = lower, .leaves = 4, .steps = 13, .three = false};
  Result alone = trained(run, nullptr);
  const TemporaryFolder folder;
  const fs::path file = folder / "run.safetensors";
  Result last;
  std::int64_t step = 0;
  for (const int ranks : {4, 2, 1, 3}) {
    run.ranks = ranks, run.save = file;
    run.resume = step == 0 ? fs::path() : file;
    step += ranks == 3 ? 1 : 4;
    run.steps = step;
    last = on_ranks(run).back();
  }
  last.numbers.resize(9), alone.numbers.resize(9);  // weights: losses are of the last step alone
  EXPECT_EQ(last.numbers, alone.numbers);
}

TEST(MultilevelRanks, RefusesWhatCannotBeShared) {
  Point w({1.0});
  PointProblem problem("one", w, optim::SGD{.lr = 0.1}, {},
                       [&](const Batch&) { return sum_squares(w.value); });
  const auto with = [&](const RankOptions& ranks) {
    mlo::EngineConfig config;
    config.ranks = ranks;
    mlo::Engine(std::vector<mlo::Problem*>{&problem}, {}, config).plan();
  };
  expect_error([&] { with({.leaves = 2, .count = 2, .shard = Shard::state}); },
               {"cannot be sharded"});
  expect_error([&] { with({.count = 2}); }, {"`leaves` is 0"});
  expect_error([&] { with({.leaves = 2, .count = 3}); }, {"3 ranks", "2 leaves"});
  expect_error([&] { with({.leaves = 2, .count = 2}); }, {"leaves of equal size", "0 items"});
}

}  // namespace
}  // namespace ebb::test
