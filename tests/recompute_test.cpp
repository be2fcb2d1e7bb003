// Recomputation: whatever is recomputed, and whatever the budget, not a bit changes.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "ebb/arena.h"
#include "ebb/ebb.h"
#include "ebb/models/gpt2.h"
#include "ebb/storage.h"
#include "ebb/threads.h"
#include "ebb/train/train_step.h"
#include "support/op_check.h"
#include "support/plan_check.h"
#include "support/random_graph.h"
#include "support/sanitizers.h"

namespace ebb::test {
namespace {

// Only a few of the graphs are searched thoroughly, which takes a hundred times longer.
TEST(Recompute, RandomGraphsKeepRandomBudgets) {
  const std::uint64_t graphs = graphs_to_try(sanitized ? 200 : 10000);
  std::int64_t recomputed = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < graphs && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("graph " + std::to_string(seed));
    const DType dtype = std::array{f32, f64, bf16}[seed % 3];
    RandomGraph random = random_graph(seed, 4 + static_cast<int>(seed % 7) * 4, dtype);
    CompileOptions options;
    options.seed = 5;
    options.plan.effort = seed % 100 == 0 ? Effort::thorough : Effort::quick;
    Program kept(random.graph, options);
    const Bytes most = kept.plan().peak, least = least_budget(random.graph, options);
    ASSERT_LE(least, most);
    std::mt19937_64 draw(seed);
    const std::int64_t range = most.count - least.count;
    // In whole pages, like everything that is counted: some budgets are just too small.
    options.plan.budget = {
        least.count - 4096 +
        static_cast<std::int64_t>(draw() % static_cast<std::uint64_t>(range + 8192))};
    try {
      Program program(random.graph, options);
      EXPECT_LE(program.plan().peak, *options.plan.budget);
      check_plan(program.plan());
      recomputed += program.plan().recomputed_nodes();
      if (program.plan().recomputed_nodes() > 0 || seed % 10 == 0) {
        EXPECT_EQ(two_steps(random, program), two_steps(random, kept));
      }
    } catch (const BudgetError& error) {
      EXPECT_LT(*options.plan.budget, least) << "a budget above the least was refused";
      EXPECT_EQ(error.least, least);
      ++refused;
    }
  }
  EXPECT_GT(recomputed, 0);
  EXPECT_GT(refused, 0);
}

// Larger tensors, so that budgets lie between many plans and not within one page.
TEST(Recompute, EveryStrategyGivesTheSameBits) {
  const models::Gpt2Config config{
      .vocabulary = 61, .context = 24, .layers = 4, .heads = 2, .width = 48, .dropout = 0.1};
  const Batch batch{{eval(zeros({4, 24}, i64)), eval(ones({4, 24}, i64))}};
  const auto step_of = [&](models::Gpt2& model, const PlanOptions& plan) {
    return TrainStep(model, optim::AdamW{.lr = 1e-2},
                     [&](const Batch& b) { return model.loss(b.x(), b.y()); },
                     {.schedule = optim::constant(), .clip_norm = {}, .compile = {.plan = plan}});
  };
  const auto losses = [&](const PlanOptions& plan, Plan* made = nullptr) {
    auto model = make<models::Gpt2>(device::cpu, f32, config);
    TrainStep step = step_of(model, plan);
    if (made) *made = step.plan(batch.types());
    std::vector<double> result;
    for (int i = 0; i < 20; ++i) result.push_back(step(batch).loss);
    return result;
  };
  Plan kept;
  const std::vector<double> expected = losses({.recompute = Recompute::parse("none")}, &kept);
  EXPECT_EQ(kept.recomputed_nodes(), 0);
  for (const char* name :
       {"blocks", "sqrt", "segment=2", "segment=4", "segment=all", "selective"}) {
    SCOPED_TRACE(name);
    Plan plan;
    EXPECT_EQ(losses({.recompute = Recompute::parse(name)}, &plan), expected);
    check_plan(plan);
    EXPECT_GT(plan.recomputed_nodes(), 0);
    EXPECT_LT(plan.live_peak, kept.live_peak);
    EXPECT_GT(plan.overhead(), 1.0);
    EXPECT_LT(plan.overhead(), 1.6);
    EXPECT_EQ(to_string(Recompute::parse(name)), name);
  }
  // Workspaces grow with the number of threads, and with them every budget that can be kept.
  const int before = threads();
  for (int count : {before, 16}) {
    set_threads(count);
    for (const char* name : {"greedy", "auto"}) {
      SCOPED_TRACE(fmt::format("{} on {} threads", name, count));
      PlanOptions options{.recompute = Recompute::parse(name)};
      auto model = make<models::Gpt2>(device::cpu, f32, config);
      TrainStep step = step_of(model, options);
      const Bytes least = least_budget(step.trace(batch.types()), step.options().compile);
      const Bytes most = step.plan(batch.types()).peak;
      EXPECT_LT(least, most);
      options.budget = Bytes{(least.count + most.count) / 2};
      Plan plan;
      EXPECT_EQ(losses(options, &plan), expected);
      EXPECT_GT(plan.recomputed_nodes(), 0);
      EXPECT_LE(plan.peak, *options.budget);
    }
  }
  set_threads(before);
}

struct Chain : nn::Module<Chain> {
  nn::Linear first{at("first"), 64, 64}, second{at("second"), 64, 64}, third{at("third"), 64, 64};
  nn::Dropout dropout{at("dropout"), 0.3};
  bool region = false;
  Tensor forward(const Tensor& x) {
    const auto middle = [&](const Tensor& h) {
      return tanh(second(dropout(tanh(second(dropout(tanh(h)))))));
    };
    const Tensor h = first(x);
    return third(region ? checkpoint([&] { return middle(h); }) : middle(h));
  }
};

struct ChainRun {
  std::vector<double> losses;
  Bytes live;
  int recomputed;
};
ChainRun run_chain(const std::function<void(Chain&)>& mark, const char* mode = "marked") {
  auto model = make<Chain>(device::cpu, f32);
  mark(model);
  TrainStep step(model, optim::SGD{.lr = 0.1},
                 [&](const Batch& b) { return mean(square(model(b.x()) - b.y())); },
                 {.schedule = optim::constant(),
                  .clip_norm = {},
                  .compile = {.plan = {.recompute = Recompute::parse(mode)}}});
  const Batch batch{{eval(random_uniform({256, 64}, -1.0, 1.0, f32, device::cpu, RandomKey{1})),
                     eval(random_uniform({256, 64}, -1.0, 1.0, f32, device::cpu, RandomKey{2}))}};
  ChainRun result;
  for (int i = 0; i < 5; ++i) result.losses.push_back(step(batch).loss);
  result.live = step.plan(batch.types()).live_peak;
  result.recomputed = step.plan(batch.types()).recomputed_nodes();
  return result;
}

TEST(Checkpoint, MarksByHand) {
  const ChainRun kept = run_chain([](Chain&) {});
  EXPECT_EQ(kept.recomputed, 0);
  const ChainRun region = run_chain([](Chain& m) { m.region = true; });
  EXPECT_EQ(region.losses, kept.losses);
  EXPECT_LT(region.live, kept.live);
  EXPECT_GT(region.recomputed, 0);
  EXPECT_EQ(run_chain([](Chain& m) { m.region = true; }, "none").recomputed, 0);

  const ChainRun module = run_chain([](Chain& m) { m.recompute(); });
  EXPECT_EQ(module.losses, kept.losses);
  EXPECT_GT(module.recomputed, 0);
  const ChainRun some = run_chain([](Chain& m) { m.recompute({.keep_one_in = 2}); });
  EXPECT_EQ(some.losses, kept.losses);
  EXPECT_GT(some.recomputed, 0);
  EXPECT_LT(some.recomputed, module.recomputed);
}

TEST(Recompute, NamesThatDoNotExist) {
  for (const char* name : {"", "segment", "segment=0", "segment=-1", "segment=2x", "Auto"})
    expect_error([&] { Recompute::parse(name); }, {std::string("\"") + name + "\"", "segment=N"});
}

// A weight is overwritten as soon as its gradient exists: values computed from its old value must
// not be recomputed afterwards.
TEST(Recompute, NothingIsComputedFromAWeightThatHasChanged) {
  const Variable w(eval(random_uniform({64, 64}, -0.1, 0.1, f32, device::cpu, RandomKey{3})));
  const Tensor x = input({{64, 64}, f32}, "x");
  const Tensor h = tanh(matmul(x, w));
  const Tensor next = w - 0.1 * h;                   // the update reads h and w
  const Tensor late = sum(square(matmul(h, next)));  // and h is needed after it
  const Graph graph{{x}, {late}, {{w, next}}};
  const Tensor value = eval(random_uniform({64, 64}, -1.0, 1.0, f32, device::cpu, RandomKey{4}));
  const Tensor start = eval(w + 0.0);
  std::vector<double> results;
  for (const char* mode : {"none", "segment=all", "auto"}) {
    Variable target = w;
    target.assign(start);
    CompileOptions options;
    options.plan.recompute = Recompute::parse(mode);
    if (std::string(mode) == "auto") options.plan.budget = least_budget(graph, options);
    Program program(graph, options);
    check_plan(program.plan());
    program.run({value});
    results.push_back(cast(program.output(0), f64).item());
    results.push_back(cast(sum(w), f64).item());
  }
  EXPECT_EQ(results[2], results[0]);
  EXPECT_EQ(results[3], results[1]);
  EXPECT_EQ(results[4], results[0]);
  EXPECT_EQ(results[5], results[1]);
}

TEST(Arena, ProgramsTakeTurns) {
  const auto arena = std::make_shared<Arena>();
  CompileOptions options;
  options.arena = arena;
  const auto program = [&](std::int64_t n) {
    const Tensor x = input({{n}, f32}, "x");
    return Program({{x}, {sum(exp(x) * 2.0) + sum(tanh(x))}, {}}, options);
  };
  Program small = program(1000), large = program(100000);
  EXPECT_EQ(arena->size(), std::max(small.plan().arena(), large.plan().arena()));
  const Tensor a = eval(ones({1000})), b = eval(ones({100000}));
  small.run({a});  // bound anew, since the arena has grown
  const double expected = cast(small.output(0), f64).item();
  large.run({b});
  small.run({a});
  EXPECT_EQ(cast(small.output(0), f64).item(), expected);
  small.feed(0, a);
  large.run({b});  // takes the bytes that were fed
  expect_error([&] { small.run(); }, {"[run]", "input 0", "was not fed"});
  Program huge = program(1000000);
  large.run({b});
  EXPECT_EQ(arena->size(), huge.plan().arena());
}

TEST(Plan, TakesNoMemory) {
  auto model = make<models::Gpt2>(device::cpu, f32, models::Gpt2Config{});
  TrainStep step(model, optim::AdamW{}, [&](const Batch& b) { return model.loss(b.x(), b.y()); });
  const Bytes before = live_bytes();
  const std::vector<TensorType> batch{{{16, 1024}, i64}, {{16, 1024}, i64}};
  // PyTorch eager takes 20,248 MiB for this step on an H200.
  const Bytes peer = 20248_MiB;
  EXPECT_LE(10 * step.plan(batch).peak, 6 * peer);
  EXPECT_LE(10 * least_budget(step.trace(batch), CompileOptions{}), 2 * peer);
  EXPECT_EQ(live_bytes(), before);
  EXPECT_FALSE(model.parameters()[0].variable.has_value());
}

}  // namespace
}  // namespace ebb::test
