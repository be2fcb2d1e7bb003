// A check that a text is one of a list, for sources that include CLI11.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace ebb::cli {

CLI::Validator member_of(const std::vector<std::string>& texts);

}  // namespace ebb::cli
