// The command line as a user meets it: output, exit codes, errors of one line.
#include <gtest/gtest.h>

#include <string>

#include "ebb/version.h"
#include "support/command_line.h"

namespace ebb::test {
namespace {

TEST(CommandLine, HelpIsTheSameHoweverItIsAskedFor) {
  const Outcome help = run("--help");
  EXPECT_EQ(help.code, 0);
  EXPECT_NE(help.output.find("info"), std::string::npos) << help.output;
  EXPECT_EQ(run("").output, help.output);
  EXPECT_EQ(run("help").output, help.output);
  EXPECT_EQ(run("help info").output, run("info --help").output);
  EXPECT_NE(run("help info").output.find("--threads"), std::string::npos);
}

TEST(CommandLine, Version) {
  const Outcome outcome = run("--version");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.output, "ebb " + std::string(version()) + "\n");
}

TEST(CommandLine, UsageErrorsAreOneLine) {
  expect_usage_error("fly", "there is no verb \"fly\"");
  expect_usage_error("help fly", "there is no verb \"fly\"");
  expect_usage_error("--fly", "--fly");
  expect_usage_error("info --fly", "--fly");
  expect_usage_error("info --threads 0", "--threads");
  expect_usage_error("info --threads many", "--threads");
}

TEST(CommandLine, SharedOptionsReachTheVerb) {
  EXPECT_NE(run("info --json --threads 3").output.find("\"threads\": 3"), std::string::npos);
}

TEST(CommandLine, AFullDiskIsAFailure) { EXPECT_EQ(run("info 2>&1 >/dev/full").code, 1); }

}  // namespace
}  // namespace ebb::test
