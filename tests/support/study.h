// A study by the built program, and what it found.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "support/command_line.h"
#include "support/temporary_folder.h"
#include "support/text_file.h"

namespace ebb::test {

class StudyTest : public testing::Test {
 protected:
  using Json = nlohmann::json;

  std::filesystem::path file(const std::string& name) const { return folder_ / "study" / name; }
  std::string out() const { return "--out " + (folder_ / "study").string() + " "; }
  static Json result_of(const std::string& arguments) {
    const Outcome outcome = run(arguments + " --json");
    EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.output;
    // The result is the last line; progress comes before it.
    return Json::parse(lines(outcome.output).back(), nullptr, false);
  }
  static std::map<std::string, Json> rows_of(const Json& study) {
    std::map<std::string, Json> rows;
    for (const Json& row : study["rows"]) rows[row["name"]] = row;
    return rows;
  }

  TemporaryFolder folder_;
};

}  // namespace ebb::test
