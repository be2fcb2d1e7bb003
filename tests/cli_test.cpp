// The command line as a user meets it: output, exit codes, errors of one line.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

#include "ebb/version.h"

namespace ebb {
namespace {

struct Outcome {
  std::string output;  // standard output and standard error together
  int code = -1;
};

Outcome run(const std::string& arguments) {
  Outcome outcome;
  FILE* pipe = popen(("'" EBB_PROGRAM "' " + arguments + " 2>&1").c_str(), "r");
  if (!pipe) return outcome;
  std::array<char, 4096> part;
  while (const std::size_t size = std::fread(part.data(), 1, part.size(), pipe))
    outcome.output.append(part.data(), size);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  return outcome;
}

void expect_usage_error(const std::string& arguments, const std::string& part) {
  const Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.code, 2) << arguments;
  EXPECT_TRUE(outcome.output.starts_with("ebb: error: ")) << outcome.output;
  EXPECT_EQ(outcome.output.find('\n'), outcome.output.size() - 1) << outcome.output;
  EXPECT_NE(outcome.output.find(part), std::string::npos) << outcome.output;
}

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
}  // namespace ebb
