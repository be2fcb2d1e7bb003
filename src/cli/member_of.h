// Checks of options for sources that include CLI11.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace ebb::cli {

CLI::Validator member_of(const std::vector<std::string>& texts);
CLI::Validator existing_file_at();  // the path of a file that is there

}  // namespace ebb::cli
