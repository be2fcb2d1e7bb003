// Engines on small networks: resuming to the bit, one arena for all levels, budgets, memory that
// does not grow with iterations, equal masks in both passes of a difference.
#include <gtest/gtest.h>

#include "ebb/arena.h"
#include "ebb/data/generated.h"
#include "ebb/io/checkpoint.h"
#include "ebb/io/safetensors.h"
#include "ebb/mlo/engine.h"
#include "ebb/models/mlp.h"
#include "ebb/nn/layers.h"
#include "ebb/optim/adam.h"
#include "ebb/optim/sgd.h"
#include "support/op_check.h"
#include "support/plan_check.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

using mlo::Config;
using mlo::Method;

struct Net : nn::Module<Net> {
  nn::Linear in{at("in"), 48, 192}, out{at("out"), 192, 4};
  nn::Dropout dropout{at("dropout"), 0.3};
  Tensor forward(const Tensor& x) { return out(dropout(tanh(in(flatten(x, 1))))); }
};

struct Weights : nn::Module<Weights> {
  nn::Linear in{at("in"), 1, 8}, out{at("out"), 8, 1};
  Tensor forward(const Tensor& loss) { return sigmoid(out(tanh(in(loss)))); }
};

struct Classifier : mlo::Problem {
  using Problem::Problem;
  mlo::StepOutput training_step(const Batch& b) override {
    const Tensor losses = cross_entropy(net()(b.x()), b.y(), {.reduction = Reduction::none});
    const Tensor column = reshape(losses, {-1, 1});
    auto& weights = static_cast<Weights&>(other("reweight").module());
    return mlo::StepOutput(mean(column * weights(stop_gradient(column))),
                           {{"plain", mean(losses)}});
  }
  Net& net() const { return static_cast<Net&>(module()); }
};

struct Reweight : mlo::Problem {
  using Problem::Problem;
  mlo::StepOutput training_step(const Batch& b) override {
    return cross_entropy(other<Classifier>("classifier").net()(b.x()), b.y());
  }
};

// Images with one batch, given by its number, that cannot be read or has a label that does not
// exist.
struct Images : data::GaussianImages {
  Images()
      : GaussianImages(data::GaussianImageOptions{
            .classes = 4, .channels = 3, .height = 4, .width = 4, .images = 90}) {}
  Batch batch(std::span<const std::int64_t> items, RandomState augmentation) const override {
    const int number = made++;
    if (number == unreadable) throw FileError("the file ends");
    Batch result = GaussianImages::batch(items, augmentation);
    if (number == mislabelled) result.tensors[1] = eval(result.y() + 100);
    return result;
  }
  mutable int made = 0;
  int unreadable = -1, mislabelled = -1;
};

struct Reweighting {
  std::shared_ptr<Images> images = std::make_shared<Images>(),
                          meta_images = std::make_shared<Images>();
  mlo::LoaderPtr train, meta;
  Net net = make<Net>(device::cpu, f32);
  Weights weights = make<Weights>(device::cpu, f32);
  Classifier classifier;
  Reweight reweight;
  mlo::Engine engine;

  Reweighting(const Config& below, const Config& above,
              const mlo::EngineConfig& config = {.seed = 3}, std::int64_t batch = 10,
              const optim::Optimizer& optimizer = optim::SGD{.lr = 0.1, .momentum = 0.9})
      : train(std::make_shared<data::Loader>(
            images, data::LoaderOptions{.batch = batch, .seed = 1, .prefetch = 0})),
        meta(std::make_shared<data::Loader>(
            meta_images, data::LoaderOptions{.batch = batch, .seed = 2, .prefetch = 0})),
        classifier("classifier", net, optimizer,
                   {below, optim::linear_warmup(5, optim::cosine(20)), {train}}),
        reweight("reweight", weights, optim::Adam{.lr = 0.01}, {above, optim::constant(), {meta}}),
        engine({&reweight, &classifier},
               {.u2l = {{"reweight", {"classifier"}}}, .l2u = {{"classifier", {"reweight"}}}},
               config) {}

  std::vector<double> steps(int count) {
    std::vector<double> losses;
    for (int i = 0; i < count; ++i) {
      engine.train_step();
      losses.push_back(classifier.count() > 0 && !classifier.last().empty()
                           ? classifier.last().at("loss")
                           : 0.0);
    }
    return losses;
  }
  std::vector<double> parameters() const {
    std::vector<double> all;
    for (const nn::ModuleBase* module :
         {static_cast<const nn::ModuleBase*>(&net), static_cast<const nn::ModuleBase*>(&weights)})
      for (const nn::NamedVariable& p : module->parameters())
        for (double value : values_of(p.variable)) all.push_back(value);
    return all;
  }
};

TEST(MloState, ResumesToTheBitFromAnyStep) {
  struct Case {
    Config below, above;
    mlo::EngineConfig engine;
  };
  const std::vector<Case> cases{
      {{.unroll_steps = 2}, {}, {.seed = 3}},
      {{.type = Method::unrolled, .unroll_steps = 2, .gradient_accumulation = 2},
       {.gradient_accumulation = 2},
       {.seed = 3}},
      {{.type = Method::sama, .unroll_steps = 3, .warmup_steps = 2},
       {},
       {.roll_back = true, .seed = 3}}};
  for (std::size_t c = 0; c < cases.size(); ++c) {
    const auto run = [&] {
      return std::make_unique<Reweighting>(cases[c].below, cases[c].above, cases[c].engine);
    };
    const auto whole = run();
    const std::vector<double> losses = whole->steps(9), expected = whole->parameters();
    for (int at = 0; at < 9; at += 2) {
      SCOPED_TRACE(std::to_string(c) + " at " + std::to_string(at));
      const TemporaryFolder folder;
      {
        const auto first = run();
        first->steps(at);
        first->engine.save(folder.path() / "checkpoint");
      }
      const auto second = run();
      second->engine.load(folder.path() / "checkpoint");
      EXPECT_EQ(second->engine.global_step(), at);
      second->steps(9 - at);
      EXPECT_EQ(second->parameters(), expected);
      if (second->classifier.last().contains("loss")) {
        EXPECT_EQ(second->classifier.last().at("loss"), losses.back());
      }
    }
  }
}

TEST(MloState, CheckpointsThatDoNotFit) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "checkpoint";
  Reweighting({}, {}).engine.save(file);
  Reweighting other_seed({}, {}, {.seed = 4});
  expect_error([&] { other_seed.engine.load(file); }, {"checkpoint", "seed 3, not 4"});
  Reweighting other_batch({}, {}, {.seed = 3}, 9);
  expect_error([&] { other_batch.engine.load(file); }, {"90 items in batches of 10", "in 9"});
  Net net = make<Net>(device::cpu, f32);
  Classifier alone("alone", net, optim::SGD{});
  mlo::Engine engine({&alone}, {}, {.seed = 3});
  expect_error([&] { engine.load(file); }, {"belongs to no problem"});
}

// Data that cannot be read, of either level, and data that a kernel refuses before the first
// update: the state is that of the last complete step, and a resumed run repeats the same bits.
TEST(MloState, AStepThatFailsLeavesTheLastWholeOne) {
  const Config below{.type = Method::unrolled, .unroll_steps = 2, .gradient_accumulation = 2};
  Reweighting whole(below, {});
  whole.steps(9);
  const TemporaryFolder folder;
  const auto file = folder / "checkpoint";
  using Break = std::function<void(Reweighting&)>;
  for (const auto& [name, step, damage] :
       {std::tuple{"train", 6, Break([](Reweighting& r) { r.images->unreadable = 6; })},
        {"meta", 7, Break([](Reweighting& r) { r.meta_images->unreadable = 1; })},
        {"label", 5, Break([](Reweighting& r) { r.images->mislabelled = 5; })}}) {
    SCOPED_TRACE(name);
    Reweighting broken(below, {});
    damage(broken);
    broken.steps(step);
    const std::vector<double> before = broken.parameters();
    EXPECT_THROW(broken.steps(1), Error);
    EXPECT_TRUE(broken.engine.intact());
    EXPECT_EQ(broken.engine.global_step(), step);
    EXPECT_EQ(broken.parameters(), before);
    broken.engine.save(file);
    Reweighting resumed(below, {});
    resumed.engine.load(file);
    resumed.steps(9 - step);
    EXPECT_EQ(resumed.parameters(), whole.parameters());
  }
}

TEST(MloState, AStepThatFailsAfterAnUpdateSaysSo) {
  Reweighting run({}, {});
  run.meta_images->mislabelled = 2;  // when the level below has been updated
  run.steps(2);
  EXPECT_THROW(run.steps(1), Error);
  EXPECT_FALSE(run.engine.intact());
}

std::vector<double> state_of(const std::filesystem::path& path, const std::string& prefix) {
  const io::SafetensorsFile file(path);
  std::vector<double> all;
  for (const auto& [name, entry] : file.entries())
    if (name.starts_with(prefix))
      for (double value : values_of(Tensor::from_bytes(file.bytes(name), entry.type)))
        all.push_back(value);
  return all;
}

TEST(MloState, ALevelMayChangeItsOptimizer) {
  const TemporaryFolder folder;
  const auto file = folder / "checkpoint", again = folder / "again";
  Reweighting first({.unroll_steps = 2}, {});
  first.steps(5);
  first.engine.save(file);
  const auto other = [] {
    return std::make_unique<Reweighting>(Config{.unroll_steps = 2}, Config{},
                                         mlo::EngineConfig{.seed = 3}, 10, optim::Adam{.lr = 0.01});
  };
  expect_error([&] { other()->engine.load(file); }, {"classifier/optimizer."});
  const auto second = other();
  second->engine.load(file, {{"classifier", io::SavedState::none}});
  EXPECT_EQ(second->parameters(), first.parameters());
  EXPECT_EQ(second->classifier.updates(), 0);  // as Adam corrects its moments by
  EXPECT_EQ(second->reweight.updates(), first.reweight.updates());
  second->engine.save(again);
  EXPECT_EQ(state_of(again, "reweight/optimizer."), state_of(file, "reweight/optimizer."));
  const std::vector<double> fresh = state_of(again, "classifier/optimizer.");
  EXPECT_GT(fresh.size(), 0u);
  EXPECT_EQ(fresh, std::vector<double>(fresh.size()));
  second->steps(4);
  EXPECT_EQ(second->classifier.updates(), 4);
}

// Another inner loop begins where the checkpoint is, in the middle of the saved one.
TEST(MloState, ALevelMayChangeItsLoop) {
  const TemporaryFolder folder;
  const auto file = folder / "checkpoint";
  Reweighting first({.unroll_steps = 3, .gradient_accumulation = 3}, {});
  first.steps(13);
  EXPECT_EQ(first.reweight.count(), 1);
  first.engine.save(file);
  Reweighting second({.type = Method::unrolled, .unroll_steps = 2, .gradient_accumulation = 2}, {});
  second.engine.load(file, {{"classifier", io::SavedState::fitting}});
  EXPECT_EQ(second.parameters(), first.parameters());
  EXPECT_EQ(second.classifier.updates(), 4);
  second.steps(3);
  EXPECT_EQ(second.reweight.count(), 1);
  second.steps(1);
  EXPECT_EQ(second.reweight.count(), 2);
  EXPECT_EQ(second.classifier.updates(), 6);
}

// Counts of batches that the file does not contain are errors at once, however large they are.
TEST(MloState, CountsThatTheFileDoesNotHold) {
  const TemporaryFolder folder;
  const auto path = folder / "run.safetensors";
  Reweighting({}, {}).engine.save(path);
  const io::SafetensorsFile file(path);
  const std::map<std::string, std::string> good = file.metadata();
  const auto expect_bad = [&](const std::string& key, const std::string& value,
                              const std::vector<std::string>& parts) {
    std::map<std::string, std::string> metadata = good;
    metadata.at(key) = value;
    std::vector<io::NamedTensor> tensors;
    for (const auto& [name, entry] : file.entries())
      tensors.push_back({name, Tensor::from_bytes(file.bytes(name), entry.type)});
    io::write_safetensors(folder / "bad.safetensors", tensors, metadata, io::Checksums::all);
    expect_error([&] { Reweighting({}, {}).engine.load(folder / "bad.safetensors"); }, parts);
  };
  expect_bad("classifier/pending", "9000000000000000", {"classifier/pending.0.0.0"});
  expect_bad("classifier/pending", "-1", {"classifier/pending", "-1"});
  expect_bad("classifier/pending", "nan", {"classifier/pending", "nan"});
  expect_bad("classifier/taken", "9e15 0 0", {"classifier/taken.0."});
  expect_bad("classifier/taken", "1 0", {"classifier/taken", "three numbers"});
  expect_bad("engine", "0 1e300 0", {"engine", "1e+300"});
}

TEST(MloState, LevelsShareOneArena) {
  Reweighting run({}, {});
  const mlo::Engine::WholePlan plan = run.engine.plan();
  ASSERT_EQ(plan.levels.size(), 2u);
  for (const auto& level : plan.levels) check_plan(level.plan);
  EXPECT_EQ(plan.arena, std::max(plan.levels[0].plan.arena(), plan.levels[1].plan.arena()));
  EXPECT_LT(plan.peak, plan.levels[0].plan.peak + plan.levels[1].plan.peak);
  run.steps(3);
  EXPECT_EQ(run.engine.arena()->size(), plan.arena);
  EXPECT_EQ(run.engine.resident(), plan.peak);
}

TEST(MloState, LevelsTogetherAreOnePlan) {
  // Sums of gradients above, and a snapshot below: state that not every program reads.
  Reweighting run({.type = Method::unrolled, .unroll_steps = 2, .gradient_accumulation = 3},
                  {.gradient_accumulation = 2});
  const mlo::Engine::WholePlan whole = run.engine.plan();
  const Plan& together = whole.together;
  const Plan &above = whole.levels[0].plan, &below = whole.levels[1].plan;
  check_layout(together);
  EXPECT_EQ(together.instructions.size(), above.instructions.size() + below.instructions.size());
  EXPECT_EQ(together.recomputed_nodes(), above.recomputed_nodes() + below.recomputed_nodes());
  EXPECT_EQ(together.peak, whole.peak);
  EXPECT_LE(together.at_peak.total(), together.peak);
  EXPECT_GE(together.at_peak.total(), together.persistent + together.live_peak);
  // Six steps of the engine are two updates below and one step above.
  EXPECT_NEAR(together.predicted_ms, below.predicted_ms / 3.0 + above.predicted_ms / 6.0,
              1e-9 * together.predicted_ms);
  run.steps(12);
  EXPECT_EQ(run.engine.resident(), whole.peak);
}

TEST(MloState, TheLeastBudgetIsTheLeast) {
  const auto with = [](std::optional<Bytes> budget) {
    return std::make_unique<Reweighting>(
        Config{.type = Method::neumann, .neumann_iterations = 2, .budget = budget},
        Config{.budget = budget}, mlo::EngineConfig{.seed = 3}, 90);
  };
  const auto plain = with({});
  const Bytes least = plain->engine.least_budget();
  EXPECT_LT(least, plain->engine.plan().peak);
  const auto tight = with(least);
  EXPECT_LE(tight->engine.plan().peak, least);
  EXPECT_EQ(tight->steps(3), plain->steps(3));
  EXPECT_EQ(tight->parameters(), plain->parameters());
  // A plan that takes up to 2 % more may be named, as it is faster.
  const Bytes below = least - Bytes{least.count / 50} - 4096_B;
  expect_error([&] { with(below)->engine.plan(); },
               {"problem \"reweight\"", "cannot be kept", std::to_string(least.count) + " bytes"});
}

TEST(MloState, ABudgetIsOfItsLevel) {
  Reweighting plain({}, {}, {.seed = 3}, 90);
  const mlo::Engine::WholePlan free = plain.engine.plan();
  const Bytes budget = plain.engine.least_budget();
  Reweighting tight({}, {.budget = budget}, {.seed = 3}, 90);
  const mlo::Engine::WholePlan whole = tight.engine.plan();
  EXPECT_GT(whole.levels[0].plan.recomputed_nodes(), 0);
  EXPECT_EQ(whole.levels[1].plan.recomputed_nodes(), 0);
  EXPECT_LT(whole.levels[0].plan.arena(), free.levels[0].plan.arena());
  EXPECT_EQ(whole.levels[1].plan.arena(), free.levels[1].plan.arena());
  Reweighting blocks({.recompute = {Recompute::Mode::selective}}, {}, {.seed = 3}, 90);
  const mlo::Engine::WholePlan other = blocks.engine.plan();
  EXPECT_EQ(other.levels[0].plan.recomputed_nodes(), 0);
  EXPECT_GT(other.levels[1].plan.recomputed_nodes(), 0);
}

TEST(MloState, BudgetsAreKeptAndChangeNoBit) {
  Reweighting plain({}, {}, {.seed = 3}, 90);
  const Bytes peak = plain.engine.plan().peak;
  const std::vector<double> losses = plain.steps(4);
  const Bytes budget = peak - Bytes{16384};
  Reweighting tight({.budget = budget}, {.budget = budget}, {.seed = 3}, 90);
  EXPECT_LE(tight.engine.plan().peak, budget);
  EXPECT_EQ(tight.steps(4), losses);
  EXPECT_EQ(tight.parameters(), plain.parameters());
  Reweighting too_tight({}, {.budget = Bytes{10000}}, {.seed = 3}, 90);
  expect_error([&] { too_tight.engine.plan(); }, {"budget"});
}

Bytes upper_peak(const Config& below, std::int64_t batch = 80) {
  Reweighting run(below, {}, {.seed = 3}, batch);
  return run.engine.plan().levels[0].plan.peak;
}

TEST(MloState, MemoryDoesNotGrowWithIterations) {
  for (Method method : {Method::neumann, Method::cg}) {
    const auto peak = [&](std::int64_t iterations) {
      return upper_peak(
          {.type = method, .neumann_iterations = iterations, .cg_iterations = iterations});
    };
    EXPECT_LE(peak(12), peak(3)) << mlo::name(method);
  }
}

// Memory grows with the updates by their parameters and momentum, not by their activations.
TEST(MloState, UnrolledMemoryGrowsFarSlowerThanItsUpdates) {
  const auto arena = [](std::int64_t steps, const char* recompute) {
    Reweighting run({.type = Method::unrolled, .unroll_steps = steps},
                    {.recompute = Recompute::parse(recompute)}, {.seed = 3}, 80);
    return static_cast<double>(run.engine.plan().levels[0].plan.arena().count);
  };
  const double one = arena(1, "marked"), kept = (arena(16, "none") - arena(8, "none")) / 8.0,
               again = (arena(16, "marked") - arena(8, "marked")) / 8.0;
  EXPECT_LT(again, 0.35 * kept);
  EXPECT_LT(arena(16, "marked"), 7.0 * one);
}

// A loss that is linear in the parameters: with equal masks on both sides the difference is exact,
// with unequal ones it would be far off.
struct MaskedLinear : mlo::Problem {
  using Problem::Problem;
  mlo::StepOutput training_step(const Batch& b) override {
    auto& net = static_cast<nn::Linear&>(module());
    auto& upper = static_cast<nn::Linear&>(other("upper").module());
    return sum(dropout(net.weight * upper.weight, 0.5)) * b.x();
  }
  Batch get_batch() override { return {{Tensor::from(std::vector<double>{1.0}, {})}}; }
};
struct UpperLinear : MaskedLinear {
  using MaskedLinear::MaskedLinear;
  mlo::StepOutput training_step(const Batch& b) override {
    return sum(static_cast<nn::Linear&>(other("lower").module()).weight) * b.x();
  }
};

TEST(MloState, BothPassesOfADifferenceSeeTheSameMasks) {
  const auto place = [] { return nn::Place{nullptr, {}, device::cpu, f64, false}; };
  nn::Linear below(place(), 20, 20, nn::Bias::no), above(place(), 20, 20, nn::Bias::no);
  MaskedLinear lower("lower", below, optim::SGD{.lr = 0.0});
  UpperLinear upper("upper", above, optim::SGD{.lr = 1.0});
  mlo::Engine engine({&lower, &upper},
                     {.u2l = {{"upper", {"lower"}}}, .l2u = {{"lower", {"upper"}}}});
  above.weight.materialise(1);
  const std::vector<double> before = values_of(above.weight);
  engine.train_step();
  const std::vector<double> after = values_of(above.weight);
  int dropped = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double gradient = before[i] - after[i];  // -(mask / 0.5) · 1: zero or -2
    EXPECT_LT(std::min(std::abs(gradient), std::abs(gradient + 2.0)), 1e-9);
    dropped += std::abs(gradient) < 1.0;
  }
  EXPECT_GT(dropped, 120);
  EXPECT_LT(dropped, 280);
}

// Batch norm below: only the level's own steps move its running statistics.
struct Normed : nn::Module<Normed> {
  nn::Conv2d conv{at("conv"), 3, 4, 3, {.padding = 1}};
  nn::BatchNorm2d norm{at("norm"), 4};
  nn::Linear out{at("out"), 64, 4};
  Tensor forward(const Tensor& x) { return out(flatten(norm(conv(x)), 1)); }
};
struct NormedClassifier : mlo::Problem {
  using Problem::Problem;
  mlo::StepOutput training_step(const Batch& b) override {
    const Tensor loss = cross_entropy(static_cast<Normed&>(module())(b.x()), b.y());
    return name() == "classifier"
               ? loss * sum(exp(static_cast<nn::Linear&>(other("top").module()).weight))
               : loss;
  }
};
struct NormedTop : mlo::Problem {
  using Problem::Problem;
  mlo::StepOutput training_step(const Batch& b) override {
    return cross_entropy(static_cast<Normed&>(other("classifier").module())(b.x()), b.y());
  }
};

TEST(MloState, RunningStatisticsAreMovedByOwnStepsAlone) {
  const auto images = std::make_shared<data::GaussianImages>(data::GaussianImageOptions{
      .classes = 4, .channels = 3, .height = 4, .width = 4, .images = 60});
  const auto loader = [&](std::uint64_t seed) {
    return std::make_shared<data::Loader>(
        images, data::LoaderOptions{.batch = 10, .seed = seed, .prefetch = 0});
  };
  const auto statistics = [&](std::int64_t warm_up) {
    auto net = make<Normed>(device::cpu, f32);
    const nn::MakeScope scope(device::cpu, f32);
    nn::Linear top(nn::root_place(), 1, 1, nn::Bias::no);
    NormedClassifier classifier("classifier", net, optim::SGD{.lr = 0.1},
                                {{.warmup_steps = warm_up}, optim::constant(), {loader(1)}});
    NormedTop above("top", top, optim::SGD{.lr = 0.0}, {{}, optim::constant(), {loader(2)}});
    mlo::Engine engine({&classifier, &above},
                       {.u2l = {{"top", {"classifier"}}}, .l2u = {{"classifier", {"top"}}}});
    for (int i = 0; i < 3; ++i) engine.train_step();
    EXPECT_EQ(above.count(), warm_up == 0 ? 3 : 0);
    return values_of(net.norm.running_mean);
  };
  EXPECT_EQ(statistics(0), statistics(100));  // with and without steps of the level above
}

}  // namespace
}  // namespace ebb::test
