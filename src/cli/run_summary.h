// The summary of a training run in its log folder, which `ebb compare` reads.
//
//   log.jsonl      numbers by step (report/log_reader.h)
//   run.json       what `ebb train --json` prints, with the command, the date and all options
//   summary.html   a page that shows both
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/logged_summary.h"
#include "cli/outputs.h"

namespace ebb::cli {

// Writes run.json, with the fields of the run and its options as workloads::to_json gives them, and
// summary.html. A failure is reported, and does not end the run.
void write_summary(const std::filesystem::path& folder, const nlohmann::ordered_json& fields,
                   const std::string& options, Outputs& outputs);
// summary.html alone, of a run that was interrupted.
void write_summary_page(const std::filesystem::path& folder, Outputs& outputs);

// Facts of several runs side by side: the name of a row, and its text for each run.
using SummaryRows = std::vector<std::pair<std::string, std::vector<std::string>>>;
SummaryRows summary_rows(const std::vector<LoggedSummary>& runs);

// One page with the curves of one run, or of several on top of each other, and a table.
std::string summary_page(const std::string& title, const std::vector<LoggedSummary>& runs);

}  // namespace ebb::cli
