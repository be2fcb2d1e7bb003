// Data reweighting on generated long-tailed images: a linear classifier on images that overlap
// leans towards the frequent classes; weights learned on a small balanced set make up for part of
// that. And the workload on the command line.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ebb/data/generated.h"
#include "ebb/data/images.h"
#include "ebb/mlo/engine.h"
#include "ebb/models/meta_weight_net.h"
#include "ebb/models/mlp.h"
#include "ebb/optim/adam.h"
#include "ebb/optim/sgd.h"
#include "ebb/threads.h"
#include "ebb/train/eval_step.h"
#include "support/command_line.h"
#include "support/op_check.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

struct LongTailed {
  data::DatasetPtr train, meta, test;

  explicit LongTailed(std::uint64_t seed) {
    constexpr std::int64_t trained = 20'000, tested = 2000;
    const auto images = std::make_shared<data::GaussianImages>(
        data::GaussianImageOptions{.classes = 4,
                                   .channels = 1,
                                   .height = 5,
                                   .width = 5,
                                   .separation = 2.0,
                                   .images = trained + tested,
                                   .seed = seed});
    std::vector<std::uint8_t> labels;
    for (std::int64_t i = 0; i < trained; ++i)
      labels.push_back(static_cast<std::uint8_t>(images->label(i)));
    const data::LongTail parts =
        data::long_tail(labels, 4, {.imbalance = 100, .meta = 1000, .seed = seed});
    train = std::make_shared<data::Subset>(images, parts.train);
    meta = std::make_shared<data::Subset>(images, parts.meta);
    test = data::Subset::range(images, trained, trained + tested);
  }
};

mlo::LoaderPtr loader(const data::DatasetPtr& data, std::uint64_t seed) {
  return std::make_shared<data::Loader>(
      data, data::LoaderOptions{.batch = 100, .seed = seed, .last = data::LastBatch::drop});
}

struct Classifier : mlo::Problem {
  Classifier(models::Mlp& net, models::MetaWeightNet* w, const mlo::ProblemOptions& options)
      : Problem("classifier", net, optim::SGD{.lr = 0.05, .momentum = 0.9}, options), weights(w) {}
  mlo::StepOutput training_step(const Batch& b) override {
    const Tensor losses = cross_entropy(static_cast<models::Mlp&>(module())(b.x()), b.y(),
                                        {.reduction = Reduction::none});
    return mean(weights ? losses * (*weights)(stop_gradient(losses)) : losses);
  }
  models::MetaWeightNet* weights;
};

struct Reweight : mlo::Problem {
  using Problem::Problem;
  mlo::StepOutput training_step(const Batch& b) override {
    return cross_entropy(static_cast<models::Mlp&>(other("classifier").module())(b.x()), b.y());
  }
};

double accuracy(models::Mlp& net, const data::DatasetPtr& test) {
  EvalStep step(net, [&](const Batch& b) {
    return std::vector{mean(cast(equal(argmax(net(b.x()), -1), cast(b.y(), i64)), f32))};
  });
  data::Loader batches(test, {.batch = 500, .shuffle = false});
  double sum = 0.0;
  for (int i = 0; i < 4; ++i) sum += step(batches.next())[0] / 4.0;
  return sum;
}

double trained_accuracy(const LongTailed& data, std::uint64_t seed, bool reweighted,
                        const mlo::Config& config = {}) {
  models::Mlp net({.inputs = 25, .hidden = 1, .classes = 4, .layers = 1});
  models::MetaWeightNet weights;
  Classifier lower(net, reweighted ? &weights : nullptr,
                   {config, optim::constant(), {loader(data.train, seed)}});
  Reweight upper("reweight", weights, optim::Adam{.lr = 0.01},
                 {{}, optim::constant(), {loader(data.meta, seed + 100)}});
  std::vector<mlo::Problem*> problems{&lower};
  mlo::Dependencies dependencies;
  if (reweighted) {
    problems.push_back(&upper);
    dependencies = {.u2l = {{"reweight", {"classifier"}}}, .l2u = {{"classifier", {"reweight"}}}};
  }
  mlo::Engine engine(problems, dependencies, {.train_iters = 1500, .valid_step = 0, .seed = seed});
  engine.run();
  return accuracy(net, data.test);
}

// Measured gains are 4 to 7 points for darts and 7 to 8 for neumann.
TEST(MloReweight, BeatsTheUnweightedBaseline) {
  const int before = threads();
  set_threads(1);  // tensors this small are not worth sharing out
  double darts = 0.0, neumann = 0.0;
  for (std::uint64_t seed : {0, 1, 2}) {
    const LongTailed data(seed);
    const double plain = trained_accuracy(data, seed, false),
                 by_darts = trained_accuracy(data, seed, true),
                 by_neumann = trained_accuracy(
                     data, seed, true,
                     {.type = mlo::Method::neumann, .neumann_iterations = 3, .neumann_alpha = 0.1});
    EXPECT_GT(by_darts, plain + 0.02) << seed;
    EXPECT_GT(by_neumann, plain + 0.02) << seed;
    darts += (by_darts - plain) / 3.0, neumann += (by_neumann - plain) / 3.0;
  }
  set_threads(before);
  EXPECT_GT(darts, 0.03);
  EXPECT_GT(neumann, 0.04);
  RecordProperty("darts", std::to_string(darts));
  RecordProperty("neumann", std::to_string(neumann));
}

using Json = nlohmann::json;

// The last line of standard output; lines of progress come before it.
Json told(const std::string& arguments) {
  const Outcome outcome = run(arguments + " 2>/dev/null");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  return Json::parse(
      outcome.output.substr(outcome.output.rfind('{', outcome.output.find("workload"))));
}

TEST(MloReweight, CommandLineTrainsAndResumesToTheBit) {
  const TemporaryFolder folder;
  const std::string common =
      "train --workload reweight --batch 20 --width 16 --classifier.accumulate 2 "
      "--reweight.lr 0.01 --eval-batches 2 --json";
  const Json whole = told(common + " --steps 12");
  EXPECT_EQ(whole["levels"].size(), 2u);
  EXPECT_EQ(whole["levels"][0]["problem"], "classifier");
  EXPECT_EQ(whole["measured_peak_bytes"], whole["planned_peak_bytes"]);
  EXPECT_GT(whole["fixed_bytes"], 0);
  EXPECT_EQ(whole["losses"].size(), 6u);  // of each update
  EXPECT_GE(whole["planned_peak_bytes"], whole["levels"][1]["planned_peak_bytes"]);
  const std::string at = " --checkpoint " + folder.path().string();
  run(common + " --steps 7" + at);
  const Json rest = told(common + " --steps 12 --resume " + folder.path().string());
  EXPECT_EQ(rest["losses"].back(), whole["losses"].back());
  EXPECT_EQ(rest["eval_loss"], whole["eval_loss"]);
}

TEST(MloReweight, CommandLinePlansWithinABudget) {
  const std::string plan = "plan --workload reweight --classifier resnet32 --json ";
  const std::int64_t most = told(plan)["planned_peak_bytes"],
                     least = told(plan + "--budget least")["planned_peak_bytes"];
  EXPECT_LT(least, most);
  // Workspaces grow with the number of threads, so that no share of the peak can always be kept.
  const std::int64_t budget = (least + most) / 2;
  const Json tight = told(plan + "--budget " + std::to_string(budget));
  EXPECT_LE(tight["planned_peak_bytes"].get<std::int64_t>(), budget);
}

TEST(MloReweight, CommandLineSettingsOfOneLevel) {
  const std::string common = "plan --workload reweight --batch 20 --width 64 --layers 3 --json ";
  const Json plain = told(common), levels = plain["levels"];
  const std::int64_t peak = plain["planned_peak_bytes"];
  const auto again = [](const Json& plan, int level) {
    return plan["levels"][level]["recomputed_nodes"].get<int>();
  };
  const Json below = told(common + "--classifier.recompute selective");
  EXPECT_GT(again(below, 0), 0);
  EXPECT_EQ(again(below, 1), 0);
  // The level above takes the most: a budget of its own lowers the whole, one of the other does
  // not.
  const std::int64_t least = told(common + "--budget least")["planned_peak_bytes"],
                     between = (least + peak) / 2;
  const std::string budget = std::to_string(between);
  const Json above = told(common + "--reweight.budget " + budget);
  EXPECT_LE(above["planned_peak_bytes"], between);
  EXPECT_GT(again(above, 1), 0);
  EXPECT_EQ(again(above, 0), 0);
  EXPECT_EQ(told(common + "--classifier.budget " + budget)["planned_peak_bytes"], peak);
  const Outcome hopeless = run(common + "--reweight.budget 10KiB");
  EXPECT_EQ(hopeless.code, 1);
  EXPECT_NE(hopeless.output.find(
                "problem \"reweight\": a budget of 10.00 KiB cannot be kept: the smallest"),
            std::string::npos)
      << hopeless.output;
}

TEST(MloReweight, CommandLineWeightsInBfloat16) {
  const std::string common =
      "train --workload reweight --batch 20 --width 32 --steps 20 --eval-batches 0 --method cg "
      "--json ";
  const Json plain = told(common), pure = told(common + "--classifier.precision pure-bf16"),
             both = told(common + "--precision split-bf16");
  EXPECT_EQ(plain["measured_peak_bytes"], plain["planned_peak_bytes"]);
  EXPECT_EQ(both["measured_peak_bytes"], both["planned_peak_bytes"]);
  EXPECT_LT(pure["planned_peak_bytes"], plain["planned_peak_bytes"]);
  EXPECT_NEAR(pure["losses"].back(), plain["losses"].back(), 0.1);
  EXPECT_NEAR(both["losses"].back(), plain["losses"].back(), 0.1);
  expect_failure("train --workload reweight --classifier.precision pure-bf16", 1, "neumann and cg");
}

TEST(MloReweight, CommandLineErrors) {
  expect_usage_error("train --workload reweight --method newton", "newton");
  expect_usage_error("train --workload reweight --lr 0.1", "--lr");
  expect_usage_error("train --workload reweight --accumulate 4", "--LEVEL.accumulate");
  expect_usage_error("plan --workload reweight --classifier.optimizer none", "none");
  expect_usage_error("fit --workload reweight", "--budget");
}

}  // namespace
}  // namespace ebb::test
