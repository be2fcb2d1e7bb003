// `--precision fp8` on the command line: what a plan reports about products, and where fp8 is
// refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "support/command_line.h"

namespace ebb::test {
namespace {

using Json = nlohmann::json;

const std::string sizes =
    " --workload llama --layers 2 --width 64 --heads 2 --vocabulary 64 --sequence 32 --batch 4 ";

Json told(const std::string& command) {
  const Outcome outcome = run(command + " --json 2>/dev/null | tail -n 1");
  EXPECT_EQ(outcome.code, 0) << command << outcome.output;
  return Json::parse(outcome.output, nullptr, false);
}

TEST(CommandLineFp8, PlansSayWhichProductsAreInFp8) {
  const Json all = told("plan" + sizes + "--hidden 96 --precision fp8"),
             some = told("plan" + sizes + "--hidden 100 --precision fp8"),
             halves = told("plan" + sizes + "--hidden 96 --precision split-bf16");
  EXPECT_EQ(all["precision"], "fp8");
  EXPECT_EQ(all["products"]["in_fp8"], 2 * 7 * 3);
  EXPECT_TRUE(all["products"]["in_bfloat16"].empty());
  EXPECT_EQ(some["products"]["in_fp8"], 2 * 4 * 3);
  ASSERT_EQ(some["products"]["in_bfloat16"].size(), 6u);
  EXPECT_FALSE(halves.contains("products"));

  const Outcome text = run("plan" + sizes + "--hidden 100 --precision fp8 2>&1");
  EXPECT_NE(text.output.find("24 products in fp8"), std::string::npos) << text.output;
  EXPECT_NE(text.output.find("mlp.up_proj: 128 × 64 by 64 × 100"), std::string::npos)
      << text.output;
}

TEST(CommandLineFp8, TrainsAndKeepsEightBits) {
  const std::string train = "train" + sizes + "--hidden 96 --steps 2 --eval-batches 1 ";
  const Json whole = told(train + "--precision fp8"),
             small = told(train + "--precision fp8 --master-bits 8"),
             halves = told(train + "--precision split-bf16");
  EXPECT_EQ(whole["precision"], "fp8");
  EXPECT_NE(whole["losses"], halves["losses"]);
  const auto kept = [](const Json& run) {
    const Json& parts = run["peak_by_category"];
    return parts["weights"].get<std::int64_t>() + parts["optimizer"].get<std::int64_t>();
  };
  EXPECT_LT(kept(small), kept(whole));
  EXPECT_EQ(kept(whole), kept(halves));
}

// Where sizes are looked for, those that fp8 cannot multiply are left out.
TEST(CommandLineFp8, SizesThatAreLookedFor) {
  const std::string model =
      " --workload gpt2 --layers 1 --width 32 --heads 2 --vocabulary 64 --precision fp8 ";
  const std::string fit = "fit" + model + "--budget 100MiB --points 2 ";
  EXPECT_EQ(told(fit + "--vary sequence --batch 2 --most 47")["largest"], 40);
  EXPECT_EQ(told(fit + "--vary batch --sequence 24 --most 7")["largest"], 6);
  EXPECT_EQ(told(fit + "--vary batch --sequence 16 --accumulate 3 --most 8")["largest"], 8);
  EXPECT_EQ(told(fit + "--vary batch --sequence 8 --accumulate 2 --most 7")["largest"], 4);
  expect_usage_error(fit + "--vary batch --sequence 1 --most 15",
                     "the smallest batch, which is 16");
  const std::string plan = "plan" + model + "--batch 4 --sequence 8 --accumulate ";
  EXPECT_EQ(told(plan + "auto")["accumulate"], 1);
  expect_failure(plan + "4", 1, "8 × 32 by 32 × 96");
}

// Micro-batches of 2, 2, 1 and 1 items of 24 tokens: only the first two could be in fp8. The budget
// is too small for larger ones, or they are taken.
TEST(CommandLineFp8, NoMicroBatchLeavesFp8) {
  const Outcome outcome = run(
      "plan --workload gpt2 --layers 2 --width 64 --heads 2 --vocabulary 64 --sequence 24 --batch "
      "6 --precision fp8 --accumulate auto --budget 2000KiB --json 2>&1 | tail -n 1");
  const Json plan = Json::parse(outcome.output, nullptr, false);
  if (plan.is_discarded())
    EXPECT_NE(outcome.output.find("cannot be kept"), std::string::npos) << outcome.output;
  else
    EXPECT_TRUE(plan["products"]["in_bfloat16"].empty()) << plan["accumulate"];
}

TEST(CommandLineFp8, Ablation) {
  const Json study = told(
      "ablate --workload gpt2 --layers 1 --width 32 --heads 2 --vocabulary 64 "
      "--sequence 16 --batch 2 --techniques fp8 --steps 2 --runs 1 --points 0");
  EXPECT_NE(study.dump().find("\"fp8\""), std::string::npos);
  expect_usage_error("ablate --workload resnet --techniques fp8", "changes nothing");
  expect_usage_error("ablate --workload gpt2 --techniques fp8+bf16", "exclude each other");
}

TEST(CommandLineFp8, WhereItIsRefused) {
  expect_failure("plan --workload resnet --depth 18 --batch 16 --precision fp8", 1,
                 "this model has none");
  expect_failure("plan --workload mlp --precision fp8", 1, "not every size is a multiple of 16");
  expect_usage_error("plan --workload reweight --precision fp8", "workloads of one level");
  expect_failure("plan --workload reweight --classifier.precision fp8", 1, "on one level");
  expect_usage_error("plan" + sizes + "--lora 8 --base nf4 --precision fp8", "--base nf4");
  expect_usage_error("plan" + sizes + "--precision fp8 --rounding kahan", "--rounding is for");
  expect_usage_error("plan" + sizes + "--precision bf16 --master-bits 8",
                     "--master-bits is for --precision split-bf16 and fp8");
  expect_usage_error("plan" + sizes + "--precision fp9", "fp8");
  expect_usage_error(
      "train" + sizes + "--precision fp8 --prune 0.3 --prune-schedule constant --prune-from 2",
      "--prune-multiple 16");
}

}  // namespace
}  // namespace ebb::test
