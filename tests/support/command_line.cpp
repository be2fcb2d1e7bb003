#include "support/command_line.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>

namespace ebb::test {

std::string program() { return EBB_PROGRAM; }

Outcome run(const std::string& arguments) {
  return run_command("'" + program() + "' " + arguments);
}

Outcome run_command(const std::string& command) {
  Outcome outcome;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (!pipe) return outcome;
  std::array<char, 4096> part;
  while (const std::size_t size = std::fread(part.data(), 1, part.size(), pipe))
    outcome.output.append(part.data(), size);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  return outcome;
}

void expect_failure(const std::string& arguments, int code, const std::string& part) {
  const Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.code, code) << arguments;
  EXPECT_TRUE(outcome.output.starts_with("ebb: error: ")) << outcome.output;
  EXPECT_EQ(outcome.output.find('\n'), outcome.output.size() - 1) << outcome.output;
  EXPECT_NE(outcome.output.find(part), std::string::npos) << outcome.output;
}

}  // namespace ebb::test
