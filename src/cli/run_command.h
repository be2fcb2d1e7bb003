// Runs one command of the program, as main() does.
#pragma once

#include <string>
#include <vector>

namespace ebb::cli {

// `words` are the verb and its options. Errors are printed; the result is the exit code.
int run_command(std::vector<std::string> words);

}  // namespace ebb::cli
