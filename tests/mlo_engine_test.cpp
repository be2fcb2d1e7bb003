// What an engine does and when: steps, accumulation, clipping, warm-up, roll-back, hooks, early
// stopping, checkpoints. Losses are of the form (w - batch)² / 2, so that every update is known.
#include <gtest/gtest.h>

#include <fstream>

#include "ebb/mlo/engine.h"
#include "ebb/nn/layers.h"
#include "ebb/optim/sgd.h"
#include "support/mlo_problems.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

using mlo::Config;
using mlo::Method;

// Half the squared distance of a point from the batch's number.
auto pull_to_batch(const Point& point) {
  return [&point](const Batch& b) { return sum_squares(point.value - b.x()) * 0.5; };
}

const mlo::Dependencies two{.u2l = {{"upper", {"lower"}}}, .l2u = {{"lower", {"upper"}}}};

// Below ½ (w - batch)² + wλ, above w, with gradient descent at the given rates.
struct Pair {
  Point w{{0.0}}, lambda{{0.0}};
  PointProblem lower, upper;
  mlo::Engine engine;
  std::vector<double> rolled_to;

  Pair(const Config& below, const Config& above, const mlo::EngineConfig& config = {},
       optim::SchedulePtr schedule = optim::constant())
      : lower(
            "lower", w, optim::SGD{.lr = 0.5}, below,
            [this](const Batch& b) {
              return sum_squares(w.value - b.x()) * 0.5 + sum(w.value * lambda.value);
            },
            std::move(schedule)),
        upper("upper", lambda, optim::SGD{.lr = 0.1}, above,
              [this](const Batch& b) { return sum(w.value) * b.x(); }),
        engine({&upper, &lower}, two, config) {
    upper.batches = {1.0};
  }
};

TEST(Mlo, UpperStepsAfterTheUnrolledUpdatesBelow) {
  Pair pair({.unroll_steps = 3}, {});
  for (int step = 1; step <= 7; ++step) {
    pair.engine.train_step();
    EXPECT_EQ(pair.lower.count(), step);
    EXPECT_EQ(pair.upper.count(), step / 3);
  }
  // The lower loss has the mixed derivative 1, so λ's gradient is -(1): it grows by 0.1 each time.
  EXPECT_NEAR(pair.lambda.get()[0], 0.2, 1e-12);
}

TEST(Mlo, LowerUpdatesAreTheKnownOnes) {
  Pair pair({}, {});
  pair.lower.batches = {1.0, -2.0, 4.0};
  double w = 0.0, lambda = 0.0;
  for (int step = 0; step < 6; ++step) {
    const double batch = pair.lower.batches[static_cast<std::size_t>(step) % 3];
    EXPECT_NEAR(pair.w.get()[0], w, 1e-12);
    pair.engine.train_step();
    EXPECT_NEAR(pair.lower.last().at("loss"), 0.5 * (w - batch) * (w - batch) + w * lambda, 1e-12);
    w -= 0.5 * (w - batch + lambda);
    lambda += 0.1;  // by hand: -d²L/dwdλ · d(upper loss)/dw = -1
  }
}

TEST(Mlo, LeafAccumulatesTheMeanOfItsBatches) {
  Pair pair({.unroll_steps = 2, .gradient_accumulation = 3}, {});
  pair.lower.batches = {1.0, 2.0, 6.0, -3.0, 0.0, 3.0};
  for (int i = 0; i < 2; ++i) pair.engine.train_step();
  EXPECT_EQ(pair.w.get()[0], 0.0);  // nothing yet
  EXPECT_EQ(pair.lower.updates(), 0);
  pair.engine.train_step();
  EXPECT_EQ(pair.lower.updates(), 1);
  EXPECT_NEAR(pair.w.get()[0], 1.5, 1e-12);  // half of the way to their mean 3
  for (int i = 0; i < 2; ++i) pair.engine.train_step();
  EXPECT_EQ(pair.upper.count(), 0);
  pair.engine.train_step();  // the second update
  EXPECT_NEAR(pair.w.get()[0], 0.75, 1e-12);
  EXPECT_EQ(pair.upper.count(), 1);
}

// Above other levels, each local step computes its gradients at once, with the current parameters
// of the levels below.
TEST(Mlo, UpperAccumulatesOverItsOwnSteps) {
  Pair pair({}, {.gradient_accumulation = 2});
  pair.upper.batches = {1.0, 3.0};
  pair.engine.train_step();
  EXPECT_EQ(pair.upper.count(), 1);
  EXPECT_EQ(pair.upper.updates(), 0);
  EXPECT_EQ(pair.lambda.get()[0], 0.0);
  pair.engine.train_step();
  EXPECT_EQ(pair.upper.updates(), 1);
  EXPECT_NEAR(pair.lambda.get()[0], 0.1 * (1.0 + 3.0) / 2.0, 1e-12);
  for (int i = 0; i < 2; ++i) pair.engine.train_step();  // sums start from zero again
  EXPECT_NEAR(pair.lambda.get()[0], 0.4, 1e-12);
}

TEST(Mlo, ClippingByTheNormOfTheWholeGradient) {
  Pair pair({}, {.gradient_clipping = 0.25});
  pair.upper.batches = {8.0};
  pair.engine.train_step();
  EXPECT_NEAR(pair.upper.last().at("gradient_norm"), 8.0, 1e-6);
  EXPECT_NEAR(pair.lambda.get()[0], 0.1 * 0.25, 1e-7);  // the scale is a float32
}

TEST(Mlo, WarmUpKeepsLevelsAboveBack) {
  Pair pair({.unroll_steps = 2, .warmup_steps = 5}, {});
  std::vector<std::int64_t> counts;
  for (int i = 0; i < 8; ++i) {
    pair.engine.train_step();
    counts.push_back(pair.upper.count());
  }
  EXPECT_EQ(counts, (std::vector<std::int64_t>{0, 0, 0, 0, 0, 1, 1, 2}));
}

TEST(Mlo, SchedulesCountLocalSteps) {
  Pair pair({}, {}, {}, optim::step_decay(2, 0.5));
  pair.lower.batches = {1.0};
  double w = 0.0, lambda = 0.0;
  for (int step = 0; step < 5; ++step) {
    pair.engine.train_step();
    w -= 0.5 * std::pow(0.5, step / 2) * (w - 1.0 + lambda);
    lambda += 0.1;
  }
  EXPECT_NEAR(pair.w.get()[0], w, 1e-12);
}

// After the upper step, the lower level returns to the start of its loop and repeats its last
// update from there with the new λ.
TEST(Mlo, RollBack) {
  Pair pair({.unroll_steps = 2}, {}, {.roll_back = true});
  pair.lower.batches = {1.0, 3.0};
  double w = 0.0, lambda = 0.0;
  for (int loop = 0; loop < 3; ++loop) {
    pair.engine.train_step();
    pair.engine.train_step();
    lambda += 0.1;
    w -= 0.5 * (w - 3.0 + lambda);
    EXPECT_NEAR(pair.lambda.get()[0], lambda, 1e-12);
    EXPECT_NEAR(pair.w.get()[0], w, 1e-12);
    EXPECT_EQ(pair.lower.updates(), loop + 1);
  }
}

TEST(Mlo, RollBackRestoresTheOptimizersState) {
  Point w({0.0}), lambda({0.0});
  PointProblem lower("lower", w, optim::SGD{.lr = 0.5, .momentum = 0.9}, {.unroll_steps = 3},
                     [&](const Batch& b) {
                       return sum_squares(w.value - b.x()) * 0.5 + sum(w.value * lambda.value);
                     });
  lower.batches = {1.0, 5.0, -2.0};
  PointProblem upper("upper", lambda, optim::SGD{.lr = 0.1}, {},
                     [&](const Batch&) { return sum(w.value); });
  mlo::Engine engine({&upper, &lower}, two, {.roll_back = true});
  double expected = 0.0, velocity = 0.0, l = 0.0;
  for (int loop = 0; loop < 2; ++loop) {
    for (int i = 0; i < 3; ++i) engine.train_step();
    l += 0.1;
    velocity = 0.9 * velocity + (expected + 2.0 + l);
    expected -= 0.5 * velocity;
    EXPECT_NEAR(w.get()[0], expected, 1e-12);
  }
}

// Two lower levels: the upper one waits for both.
TEST(Mlo, UpperWaitsForAllLevelsBelow) {
  Point a({0.0}), b({0.0}), c({0.0});
  PointProblem first("first", a, optim::SGD{.lr = 0.5}, {.unroll_steps = 1}, pull_to_batch(a)),
      second("second", b, optim::SGD{.lr = 0.5}, {.unroll_steps = 2}, pull_to_batch(b)),
      top("top", c, optim::SGD{.lr = 0.5}, {},
          [&](const Batch&) { return sum_squares(c.value - a.value - b.value); });
  mlo::Engine engine({&first, &second, &top},
                     {.u2l = {}, .l2u = {{"first", {"top"}}, {"second", {"top"}}}});
  for (int step = 1; step <= 6; ++step) {
    engine.train_step();
    EXPECT_EQ(first.count(), step);
    EXPECT_EQ(top.count(), step / 2);
  }
}

struct Hooked : PointProblem {
  using PointProblem::PointProblem;
  std::vector<Tensor> gradient_callback(std::vector<Tensor> gradients) override {
    for (Tensor& g : gradients) g = g * 2.0;
    return gradients;
  }
  Tensor parameter_callback(const nn::NamedVariable& p, const Tensor& value) override {
    EXPECT_EQ(p.path, "value");
    return clamp(value, -1.0, 1.0);
  }
  void on_inner_loop_start() override { ++loops; }
  int loops = 0;
};

TEST(Mlo, Hooks) {
  Point w({0.0}), lambda({0.0});
  Hooked lower("lower", w, optim::SGD{.lr = 0.25}, {.unroll_steps = 2}, pull_to_batch(w));
  lower.batches = {1.0, 100.0};
  PointProblem upper("upper", lambda, optim::SGD{}, {},
                     [&](const Batch&) { return sum(w.value + lambda.value); });
  mlo::Engine engine({&lower, &upper}, {.u2l = {}, .l2u = {{"lower", {"upper"}}}});
  engine.train_step();
  EXPECT_NEAR(w.get()[0], 0.5, 1e-12);  // twice the gradient
  engine.train_step();
  EXPECT_EQ(w.get()[0], 1.0);  // held back
  engine.train_step();
  EXPECT_EQ(lower.loops, 2);
}

struct OwnStep : PointProblem {
  using PointProblem::PointProblem;
  std::optional<std::vector<Update>> custom_optimizer_step(const OptimizerStep& step) override {
    Variable times = step.state.get("times", {{}, f64}, device());
    const Variable& p = step.parameters[0].variable;
    return std::vector<Update>{{p, p - sign(step.gradients[0]) * step.rate}, {times, times + 1.0}};
  }
};

TEST(Mlo, CustomOptimizerStep) {
  Point w({0.0}), lambda({0.0});
  OwnStep lower("lower", w, optim::SGD{.lr = 0.25}, {.type = Method::unrolled, .unroll_steps = 2},
                [&](const Batch& b) { return sum_squares(w.value - b.x() - lambda.value); });
  lower.batches = {5.0};
  PointProblem upper("upper", lambda, optim::SGD{.lr = 1.0}, {},
                     [&](const Batch&) { return sum(w.value * 3.0); });
  mlo::Engine engine({&lower, &upper}, two);
  for (int i = 0; i < 4; ++i) engine.train_step();
  EXPECT_EQ(w.get()[0], 1.0);
  EXPECT_EQ(lambda.get()[0], 0.0);  // steps of one size do not respond to λ
}

// Two points, one of them frozen: it does not change, and no vector is propagated through it.
struct TwoPoints : nn::Module<TwoPoints> {
  nn::Linear moving{at("moving"), 1, 1, nn::Bias::no}, frozen{at("frozen"), 1, 1, nn::Bias::no};
};

struct HalfFrozen : mlo::Problem {
  using Problem::Problem;
  mlo::StepOutput training_step(const Batch&) override {
    const Tensor lambda = other<PointProblem>("upper").point.value;
    return sum(net().moving.weight * lambda) + sum(net().frozen.weight * lambda);
  }
  Batch get_batch() override { return {{Tensor::from(Row{0.0}, {})}}; }
  TwoPoints& net() const { return static_cast<TwoPoints&>(module()); }
};

TEST(Mlo, FrozenParametersStayAndCarryNoHypergradient) {
  auto net = make<TwoPoints>(device::cpu, f64);
  net.frozen.freeze();
  Point lambda({1.0});
  HalfFrozen lower("lower", net, optim::SGD{.lr = 0.5});
  PointProblem upper("upper", lambda, optim::SGD{.lr = 1.0}, {}, [&](const Batch&) {
    return sum(net.moving.weight * 3.0) + sum(net.frozen.weight * 5.0);
  });
  mlo::Engine engine({&lower, &upper}, two);
  net.frozen.weight.materialise();
  const Row before = values_of(net.frozen.weight);
  engine.train_step();
  EXPECT_EQ(values_of(net.frozen.weight), before);
  EXPECT_NEAR(lambda.get()[0], 1.0 + 3.0, 1e-9);  // -d²L/dwdλ · v = -3, from the moving part alone
}

TEST(Mlo, AllFrozen) {
  Pair pair({}, {});
  pair.w.freeze();
  expect_error([&] { pair.engine.train_step(); }, {"\"lower\"", "frozen"});
}

TEST(Mlo, MetricsAndLogs) {
  const TemporaryFolder folder;
  {
    Point w({2.0});
    PointProblem only("only", w, optim::SGD{.lr = 0.5}, {.log_step = 2}, [&](const Batch& b) {
      return mlo::StepOutput(sum_squares(w.value - b.x()), {{"place", sum(w.value)}});
    });
    mlo::Engine engine(
        {&only}, {},
        {.train_iters = 4, .logger = mlo::Logger::json_lines, .log_folder = folder.path()});
    engine.run();
    EXPECT_EQ(engine.global_step(), 4);
    EXPECT_EQ(only.last().size(), 2u);
  }
  std::ifstream log(folder.path() / "log.jsonl");
  std::string line;
  std::vector<std::string> lines;
  while (std::getline(log, line)) lines.push_back(line);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[1], R"({"step":2,"tag":"only/place","value":0})");
  EXPECT_NE(lines[3].find(R"("step":4)"), std::string::npos);
}

struct Judged : mlo::Engine {
  using Engine::Engine;
  mlo::Stats validation() override {
    return {{"score", scores[static_cast<std::size_t>(calls++)]}};
  }
  Row scores = {0.1, 0.5, 0.4, 0.5, 0.3, 0.2, 0.1, 0.9};
  int calls = 0;
};

TEST(Mlo, EarlyStopping) {
  Point w({2.0});
  PointProblem only("only", w, optim::SGD{.lr = 0.5}, {}, pull_to_batch(w));
  Judged engine({&only}, {},
                {.train_iters = 100,
                 .valid_step = 3,
                 .early_stopping = mlo::EarlyStopping{mlo::EarlyStopping::Mode::max, 2, "score"}});
  engine.run();
  EXPECT_TRUE(engine.stopped_early());
  EXPECT_EQ(engine.calls, 6);  // 0.5 again is no worse; 0.3 and 0.2 are two in a row
  EXPECT_EQ(engine.global_step(), 18);
}

TEST(Mlo, DependenciesThatCannotBe) {
  Point point({0.0});
  PointProblem a("a", point, optim::SGD{}, {}, pull_to_batch(point)),
      b("b", point, optim::SGD{}, {}, pull_to_batch(point)),
      c("c", point, optim::SGD{}, {}, pull_to_batch(point));
  const auto engine = [&](const mlo::Dependencies& dependencies) {
    return [&, dependencies] { mlo::Engine({&a, &b, &c}, dependencies); };
  };
  expect_error(engine({.u2l = {}, .l2u = {{"a", {"d"}}}}), {"l2u", "\"d\"", "a, b, c"});
  expect_error(engine({.u2l = {}, .l2u = {{"a", {"b"}}, {"b", {"c"}}, {"c", {"a"}}}}),
               {"circle", "\"a\" → \"b\" → \"c\" → \"a\""});
  expect_error(engine({.u2l = {{"c", {"a"}}}, .l2u = {{"a", {"b"}}}}),
               {"u2l", "no way from \"a\" up to \"c\""});
  expect_error(engine({.u2l = {}, .l2u = {{"a", {"b", "b"}}}}), {"twice"});
  expect_error([&] { mlo::Engine({&a, &a}, {}); }, {"two problems", "\"a\""});
  mlo::Engine one({&a}, {});
  expect_error([&] { mlo::Engine({&a}, {}); }, {"another engine"});
  expect_error([&] { a.other("z"); }, {"\"a\" asks for problem \"z\"", "there are: a"});
  expect_error([&] { b.count(); }, {"no engine"});
}

TEST(Mlo, ConfigsThatCannotBe) {
  Point point({0.0});
  const auto with = [&](const Config& config) {
    return [&, config] { PointProblem("p", point, optim::SGD{}, config, pull_to_batch(point)); };
  };
  expect_error(with({.unroll_steps = 0}), {"\"p\"", "unroll_steps", "0"});
  expect_error(with({.gradient_accumulation = 0}), {"gradient_accumulation"});
  expect_error(with({.gradient_clipping = -1.0}), {"gradient_clipping"});
  expect_error(with({.darts_alpha = 0.0}), {"darts_alpha"});
  expect_error([] { mlo::method_by_name("newton"); }, {"newton", "darts", "unrolled"});
}

// All paths of a diamond are found: c above a and b, which are both above d.
TEST(Mlo, StrategiesThatDoNotExist) {
  expect_error([] { Pair({}, {}, {.strategy = "fsdp"}); }, {"\"fsdp\"", "default"});
  EXPECT_EQ(Pair({}, {}, {.strategy = "default"}).engine.config().strategy, "default");
}

TEST(Mlo, PathsOfADiamond) {
  const mlo::LevelGraph graph(
      {"d", "a", "b", "c"},
      {.u2l = {{"c", {"d", "a"}}}, .l2u = {{"d", {"a", "b"}}, {"a", {"c"}}, {"b", {"c"}}}});
  EXPECT_EQ(graph.paths[3], (std::vector<mlo::LevelPath>{{3, 1, 0, 3}, {3, 2, 0, 3}, {3, 1, 3}}));
  EXPECT_EQ(graph.leaves, std::vector<int>{0});
}

}  // namespace
}  // namespace ebb::test
