// The result of a command that was asked for JSON.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "support/command_line.h"

namespace ebb::test {

// The document on the last lines of a command that must have succeeded; progress comes before it.
inline nlohmann::json last_json(const Outcome& outcome) {
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  const std::string lines = '\n' + outcome.output;
  const std::size_t begin = lines.rfind("\n{");
  if (outcome.code != 0 || begin == std::string::npos) return {};
  return nlohmann::json::parse(lines.substr(begin + 1));
}

}  // namespace ebb::test
