// The list of passes: what it refuses, and that no pass changes a result on the CPU.
#include "ebb/passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ebb/data/loader.h"
#include "ebb/ebb.h"
#include "ebb/train/train_step.h"
#include "ebb/workloads/settings.h"
#include "support/command_line.h"
#include "support/op_check.h"
#include "support/small_workload.h"

namespace ebb::test {
namespace {

using Json = nlohmann::json;

struct Trained {
  std::vector<double> losses;
  std::vector<PassEffect> effects;
};

Trained train(const std::string& family, const PassList& passes) {
  const auto task = workloads::make_workload(small_workload(family));
  TrainOptions options;
  options.compile.passes = passes;
  TrainStep step(
      task->model(), task->optimizer(), [&](const Batch& b) { return task->loss(b); }, options);
  data::Loader loader(task->train, workloads::training_loader(task->batch_size, 0, device::cpu));
  Trained result;
  run_passes(step.trace(loader.types().front()), passes, &result.effects);
  for (int i = 0; i < 2; ++i) result.losses.push_back(step(loader.next()).loss);
  return result;
}

class EveryFamily : public testing::TestWithParam<const char*> {};

// `PassBits` promises the CPU's bits for every pass.
TEST_P(EveryFamily, EachPassOffByItselfChangesNoBit) {
  const Trained all = train(GetParam(), all_pass_names());
  int left_out = 0;
  for (const PassEffect& effect : all.effects) {
    if (effect.pass->required || effect.nodes_before == effect.nodes_after) continue;
    const std::string name(effect.pass->name);
    const Trained without = train(GetParam(), passes_without(all_pass_names(), {name}));
    EXPECT_EQ(without.losses, all.losses) << "without " << name;
    EXPECT_EQ(without.effects.back().pass, effect.pass);
    EXPECT_FALSE(without.effects.back().ran);
    ++left_out;
  }
  EXPECT_GT(left_out, 0);
  EXPECT_EQ(train(GetParam(), required_passes()).losses, all.losses);
}
INSTANTIATE_TEST_SUITE_P(Passes, EveryFamily,
                         testing::Values("gpt2", "llama", "bert", "lm", "resnet", "mlp"),
                         [](const auto& name) { return std::string(name.param); });

TEST(Passes, AnotherOrderOfRewritesGivesTheSameBits) {
  PassList reversed = all_pass_names();
  const auto layout = std::ranges::find(reversed, "insert_copies");
  std::reverse(reversed.begin(), layout);
  EXPECT_EQ(train("gpt2", reversed).losses, train("gpt2", all_pass_names()).losses);
}

TEST(Passes, ListsThatCannotRun) {
  const Graph graph{{}, {zeros({2})}, {}};
  const auto run = [&](PassList list) { return [=] { run_passes(graph, list); }; };
  expect_error(run({"insert_copies", "join_rely"}), {"join_rely", "join_relu, fuse_pointwise"});
  expect_error(run({"join_relu", "join_relu", "insert_copies"}), {"join_relu", "twice"});
  expect_error(run({"join_relu"}), {"insert_copies", "not in the list"});
  expect_error(run({"insert_copies", "join_relu"}),
               {"\"join_relu\" must run before \"insert_copies\""});
  expect_error(run({"group_small", "insert_copies"}),
               {"\"insert_copies\" must run before \"group_small\""});
  expect_error([] { passes_without(all_pass_names(), {"insert_copies"}); },
               {"insert_copies", "cannot be left out"});
  CompileOptions none;
  none.passes = PassList{};
  expect_error([&] { plan_program(graph, none); }, {"insert_copies"});
}

// --- The command line

const std::string sizes = "--workload mlp --batch 10 ";

// The object that the last line of the output is.
Json result_of(const std::string& arguments) {
  const Outcome outcome = run(arguments + " --json 2>/dev/null");
  EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.output;
  return Json::parse(outcome.output.substr(
      outcome.output.rfind('{', 0) == 0 ? 0 : outcome.output.find("\n{") + 1));
}

TEST(CommandLinePasses, AreListedWithWhatTheyDo) {
  const auto rows = [](const std::string& options) {
    const Json plan = result_of("plan --passes " + sizes + options);
    std::map<std::string, Json> result;
    for (const Json& row : plan["passes"]) result[row["name"]] = row;
    return result;
  };
  auto all = rows("--precision bf16 --accumulate 2");
  EXPECT_EQ(all["precision"]["setting"], "bf16");
  EXPECT_EQ(all["accumulate"]["setting"], "2");
  EXPECT_EQ(all.size(), 2 + all_passes().size());
  EXPECT_LT(all["fuse_pointwise"]["nodes_after"], all["fuse_pointwise"]["nodes_before"]);
  auto some = rows("--without join_relu,fuse_pointwise --without pack_gradients");
  for (const char* name : {"join_relu", "fuse_pointwise", "pack_gradients"})
    EXPECT_FALSE(some[name]["ran"]) << name;
  EXPECT_TRUE(some["join_loss"]["ran"]);
  EXPECT_NE(run("plan --passes --without join_relu " + sizes).output.find("left out"),
            std::string::npos);
}

TEST(CommandLinePasses, ThatAreLeftOutAreNotRun) {
  const std::string train = "train --steps 2 --eval-batches 0 " + sizes;
  const Json fused = result_of(train), apart = result_of(train + "--without fuse_pointwise");
  EXPECT_EQ(fused["losses"], apart["losses"]);
  EXPECT_NE(fused["predicted_step_ms"], apart["predicted_step_ms"]);
}

TEST(CommandLinePasses, NamesThatAreWrong) {
  for (const char* verb : {"plan ", "train --steps 1 ", "profile ", "ablate "}) {
    expect_usage_error(verb + sizes + "--without join_rely", "there are share_codes, join_loss");
    expect_usage_error(verb + sizes + "--without insert_copies", "cannot be left out");
  }
  expect_usage_error("plan " + sizes + "--without group_small", "is for a GPU");
  expect_usage_error("plan --workload reweight --passes",
                     "--passes is for workloads with one program");
  const std::string study = "ablate --steps 1 --runs 1 " + sizes + "--techniques ";
  expect_usage_error(study + "defaults-join_rely", "there is no pass \"join_rely\"");
  expect_usage_error(study + "blocks-join_relu", "add fusion");
  expect_usage_error(study + "defaults-group_small", "does nothing on this device");
}

}  // namespace
}  // namespace ebb::test
