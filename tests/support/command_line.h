// Runs the built program as a user would.
#pragma once

#include <string>

namespace ebb::test {

struct Outcome {
  std::string output;  // standard output and standard error together, unless the arguments redirect
  int code = -1;
};

std::string program();  // its path
Outcome run(const std::string& arguments);
// A command of the shell.
Outcome run_command(const std::string& command);

// Expects one line that starts with "ebb: error: ", holds `part`, and the exit code.
void expect_failure(const std::string& arguments, int code, const std::string& part);
inline void expect_usage_error(const std::string& arguments, const std::string& part) {
  expect_failure(arguments, 2, part);
}

}  // namespace ebb::test
