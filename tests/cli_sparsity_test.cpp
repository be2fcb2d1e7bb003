// `ebb train --sparsity`: masks on the command line, in checkpoints and in configuration files.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/command_line.h"
#include "support/json_result.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

const std::string tiny = small_gpt2(1, 16, 2, 0);

constexpr int weights = 12 * 16 * 16;

TEST(CommandLineSparsity, EveryMethodReachesItsShareAndResumes) {
  for (const std::string method : {"magnitude", "movement", "rigl"}) {
    const TemporaryFolder folder;
    const std::string at = (folder / "run").string(),
                      sparse = tiny +
                               "--sparsity 0.75 --sparsity-until 4 --sparsity-every 2 "
                               "--sparsity-method " +
                               method + " ";
    const Json whole = result_of(sparse + "--steps 6");
    ASSERT_TRUE(whole.contains("masks")) << whole;
    EXPECT_EQ(whole["masks"]["weights"], weights);
    EXPECT_EQ(whole["masks"]["zeros"], weights * 3 / 4);
    EXPECT_EQ(whole["measured_peak_bytes"], whole["planned_peak_bytes"]) << method;
    ASSERT_EQ(run(sparse + "--steps 3 --checkpoint " + at).code, 0);
    const Json rest = result_of("train --steps 6 --resume " + at);
    EXPECT_EQ(rest["losses"], (Json{whole["losses"][3], whole["losses"][4], whole["losses"][5]}));
    expect_usage_error("train --steps 9 --sparsity 0.5 --resume " + at,
                       "sparsity was 0.75 and is now 0.5");
  }
}

TEST(CommandLineSparsity, ATicketStartsFromTheFirstWeightsOrFromALaterCheckpoint) {
  const TemporaryFolder folder;
  const std::string found = (folder / "found").string(), early = (folder / "early").string();
  ASSERT_EQ(run(tiny + "--steps 2 --checkpoint " + early).code, 0);
  ASSERT_EQ(run(tiny +
                "--sparsity-pattern 2:4 --sparsity-schedule constant --sparsity-from 4 "
                "--steps 4 --checkpoint " +
                found)
                .code,
            0);
  const Json ticket = result_of(tiny + "--steps 3 --sparsity-masks " + found);
  EXPECT_EQ(ticket["masks"]["zeros"], weights / 2);
  // Rewinding to step 2, with the optimizer's state and the data's position of that time.
  expect_usage_error("train --steps 5 --sparsity-masks " + found + " --resume " + early,
                     "--change sparsity-masks");
  const Json rewound = result_of("train --steps 5 --change sparsity-masks --sparsity-masks " +
                                 found + " --resume " + early);
  EXPECT_EQ(rewound["losses"].size(), 3u);
  EXPECT_EQ(rewound["masks"]["zeros"], weights / 2);
  // The checkpoint has the masks now.
  std::filesystem::remove_all(found);
  EXPECT_EQ(result_of("train --steps 6 --resume " + early)["masks"]["zeros"], weights / 2);
}

TEST(CommandLineSparsity, PlansCountMasks) {
  const std::string plan =
      "plan --workload gpt2 --layers 2 --width 64 --heads 2 --sequence 16 "
      "--vocabulary 61 --json ";
  const auto peak = [](const std::string& arguments) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return Json::parse(outcome.output.substr(outcome.output.find('{')))["planned_peak_bytes"]
        .get<double>();
  };
  const double dense = peak(plan), sparse = peak(plan + "--sparsity 0.5 --sparsity-until 100");
  EXPECT_GT(sparse, dense);
  EXPECT_LT(sparse, 1.05 * dense);
}

TEST(CommandLineSparsity, ConfigurationFilesHaveIt) {
  const TemporaryFolder folder;
  const std::string file = (folder / "run.toml").string();
  const std::string options = tiny +
                              "--steps 2 --sparsity 0.5 --sparsity-method rigl "
                              "--sparsity-until 10 --sparsity-every 1 ";
  const Outcome printed = run(options + "--print-config");
  ASSERT_EQ(printed.code, 0) << printed.output;
  EXPECT_NE(printed.output.find("sparsity-method = \"rigl\""), std::string::npos) << printed.output;
  std::ofstream(file) << printed.output;
  EXPECT_EQ(result_of("train --config " + file)["losses"], result_of(options)["losses"]);
}

TEST(CommandLineSparsity, WrongUsage) {
  const std::string one = tiny + "--steps 1 ";
  expect_usage_error(one + "--sparsity 0.5", "--sparsity-until");
  expect_usage_error(one + "--sparsity 1 --sparsity-until 4", "greater than 0 and less than 1");
  expect_usage_error(one + "--sparsity 1.5 --sparsity-until 4", "--sparsity");
  expect_usage_error(one + "--sparsity-method rigl", "needs --sparsity");
  expect_usage_error(one + "--sparsity 0.5 --sparsity-pattern 2:4", "--sparsity");
  expect_usage_error(one + "--sparsity-pattern 4:2 --sparsity-until 4", "N:M");
  expect_usage_error(one +
                         "--sparsity 0.5 --sparsity-method rigl --sparsity-schedule cubic "
                         "--sparsity-until 4",
                     "constant");
  expect_usage_error(one + "--sparsity 0.5 --sparsity-schedule constant --sparsity-until 4",
                     "no effect");
  expect_usage_error(one + "--sparsity 0.5 --sparsity-from 4 --sparsity-until 4", "after step 4");
  expect_usage_error(one + "--sparsity-masks /nowhere", "/nowhere");
  expect_usage_error("train --workload reweight --steps 1 --sparsity 0.5 --sparsity-until 3",
                     "levels do not support masks");
  expect_failure(
      "train --workload gpt2 --layers 1 --width 64 --heads 2 --sequence 16 --vocabulary 61 "
      "--steps 1 --sparsity 0.5 --sparsity-until 3 --optimizer adamw8bit",
      1, "few bits");
  const TemporaryFolder folder;
  expect_failure(one + "--sparsity-masks " + folder.path().string(), 1, "checkpoint.safetensors");
}

// Remedies that masks do not allow, such as moments in 8 bits, are not suggested and hide no error.
TEST(CommandLineSparsity, ABudgetThatCannotBeKeptIsToldAsSuch) {
  const Outcome outcome =
      run("plan --workload mlp --budget 1MiB --sparsity 0.5 --sparsity-until 3 --sparsity-every 1");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.output.find("cannot be kept"), std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find("adamw8bit"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace ebb::test
