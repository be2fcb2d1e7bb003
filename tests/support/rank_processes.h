// Finds the processes of a run with several ranks, so that tests can stop or end them.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace ebb::test {

// Processes with `mark` in their command line and a variable such as "RANK=1" in their environment.
std::vector<pid_t> processes_of(const std::string& mark, const std::string& rank);

}  // namespace ebb::test
