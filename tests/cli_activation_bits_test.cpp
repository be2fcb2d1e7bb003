// `--activation-bits 8` on the command line: what a plan says of it, and where it is refused.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "support/command_line.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

using Json = nlohmann::json;

const std::string sizes =
    " --workload gpt2 --layers 2 --width 64 --heads 2 --vocabulary 64 --sequence 128 --batch 8 "
    "--dropout 0 ";

Json told(const std::string& command) {
  const Outcome outcome = run(command + " --json 2>/dev/null | tail -n 1");
  EXPECT_EQ(outcome.code, 0) << command << outcome.output;
  return Json::parse(outcome.output, nullptr, false);
}

TEST(CommandLineActivationBits, PlansSayWhatIsKept) {
  const Json codes = told("plan" + sizes + "--activation-bits 8 --passes"),
             whole = told("plan" + sizes);
  EXPECT_FALSE(whole.contains("activations"));
  const Json& all = codes["activations"];
  EXPECT_EQ(all["bits"], 8);
  std::int64_t kept = 0;
  bool found = false;
  for (const Json& row : all["kept"]) {
    kept += row["code_bytes"].get<std::int64_t>();
    if (row["module"] != "transformer.h.*.mlp.c_fc") continue;
    found = true;
    EXPECT_EQ(row["values"], 2);
    EXPECT_EQ(row["whole_bytes"], 2 * 8 * 128 * 256 * 4);
    EXPECT_EQ(row["code_bytes"], 2 * 8 * 128 * (256 + 4 * 4));
  }
  EXPECT_TRUE(found) << all.dump(1);
  EXPECT_EQ(kept, all["code_bytes"]);
  EXPECT_LT(codes["planned_peak_bytes"], whole["planned_peak_bytes"]);
  bool listed = false;
  for (const Json& row : codes["passes"])
    listed |= row["name"] == "code_activations" && row["ran"] == true;
  EXPECT_TRUE(listed);

  const Outcome text = run("plan" + sizes + "--activation-bits 8 2>&1");
  EXPECT_NE(text.output.find("activations in 8 bits"), std::string::npos) << text.output;
  EXPECT_NE(text.output.find("computed again"), std::string::npos) << text.output;
}

TEST(CommandLineActivationBits, TrainsAndResumes) {
  const TemporaryFolder folder;
  const std::string at = (folder / "run").string(), train = "train" + sizes + "--eval-batches 0 ";
  const Json codes = told(train + "--steps 4 --activation-bits 8")["losses"],
             whole = told(train + "--steps 4")["losses"];
  EXPECT_EQ(codes[0], whole[0]);
  EXPECT_NE(codes[3], whole[3]);
  ASSERT_EQ(run(train + "--steps 2 --activation-bits 8 --checkpoint " + at).code, 0);
  EXPECT_EQ(told("train --steps 4 --resume " + at)["losses"], (Json{codes[2], codes[3]}));

  const std::string other = (folder / "other").string();
  ASSERT_EQ(run(train + "--steps 2 --checkpoint " + other).code, 0);
  expect_usage_error("train --steps 3 --activation-bits 8 --resume " + other,
                     "--change activation-bits");
  EXPECT_EQ(
      run("train --steps 3 --activation-bits 8 --change activation-bits --resume " + other).code,
      0);

  const std::string config = (folder / "run.toml").string();
  std::ofstream(config) << "activation-bits = 8\n";
  EXPECT_EQ(told(train + "--steps 4 --config " + config)["losses"], codes);
}

TEST(CommandLineActivationBits, PlanFiles) {
  const TemporaryFolder folder;
  const std::string file = (folder / "step.plan").string(),
                    train = "train" + sizes + "--steps 2 --eval-batches 0 ";
  ASSERT_EQ(run("plan" + sizes + "--activation-bits 8 --save " + file).code, 0);
  EXPECT_EQ(told(train + "--activation-bits 8 --plan " + file)["losses"],
            told(train + "--activation-bits 8")["losses"]);
  expect_failure(train + "--plan " + file, 1, "activations in 8 bits");
}

TEST(CommandLineActivationBits, OtherVerbs) {
  const std::string tiny =
      " --workload gpt2 --layers 1 --width 32 --heads 2 --vocabulary 64 --sequence 16 --batch 2 ";
  const Json study =
      told("ablate" + tiny +
           "--techniques activations-8,fusion+activations-8 --steps 2 --runs 1 --points 0");
  EXPECT_NE(study.dump().find("\"activations-8\""), std::string::npos);
  EXPECT_EQ(run("profile" + tiny + "--activation-bits 8 --steps 2").code, 0);
  EXPECT_EQ(run("fit --workload gpt2 --layers 1 --width 32 --heads 2 --vocabulary 64 --sequence 16 "
                "--activation-bits 8 --budget 4MiB")
                .code,
            0);
  EXPECT_EQ(run("frontier" + tiny + "--activation-bits 8").code, 0);
}

TEST(CommandLineActivationBits, WhereItIsRefused) {
  expect_usage_error("plan" + sizes + "--activation-bits 4", "8");
  expect_usage_error("plan --workload reweight --activation-bits 8", "workloads of one level");
  expect_failure("plan --workload mlp --activation-bits 8", 1, "nothing of that kind");
  expect_usage_error("plan" + sizes + "--without code_activations", "only if it is asked for");
  expect_usage_error("ablate --workload resnet --techniques activations-8", "changes nothing");
}

}  // namespace
}  // namespace ebb::test
