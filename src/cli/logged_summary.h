// A training run as its log folder records it.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ebb/report/log_reader.h"

namespace ebb::cli {

struct LoggedSummary {
  std::string name;               // the folder's
  report::LoggedRun log;          // may be empty of a run that has not begun
  nlohmann::ordered_json fields;  // an empty object of a run that is not over

  const std::vector<report::LoggedValue>* find(const std::string& tag) const;
  // The losses: "loss", or those of the lowest of several levels; the learning rates likewise.
  const std::vector<report::LoggedValue>* losses() const;
  const std::vector<report::LoggedValue>* rates() const;
};

// The level whose losses and rates stand for a run of several.
inline const std::string lowest_level = "classifier";

// Reads a folder with log.jsonl, and run.json if the run has ended. A FileError for anything else.
LoggedSummary read_summary(const std::filesystem::path& folder);

}  // namespace ebb::cli
