// The results of a study: kept in a folder as files for machines, papers and people, and read back
// to go on from.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/ablate/study.h"

namespace ebb::cli {

using Json = nlohmann::ordered_json;

struct Results {
  Json facts;     // run_facts
  Json settings;  // all that decides the numbers; a study can only go on with the same
  std::vector<Row> rows;
  // Automatic plans of a row at several budgets.
  struct Curve {
    std::string row;
    Json points;
  };
  std::vector<Curve> curves = {};

  // The first row's, where it is done.
  const Row* baseline() const;
};

Json to_json(const Results& results);
std::string to_csv(const Results& results);
std::string to_markdown(const Results& results);  // tables and how they were made
std::string to_table(const Results& results);     // for a terminal of 100 columns
std::string to_page(const Results& results);      // report.html

// results.json, results.csv, results.md, report.html and timelines.json, the page's own data. The
// folder is made if it is not there. Each file appears whole.
void save(const Results& results, const std::filesystem::path& folder);

// Only what goes on from: results.json and timelines.json.
void save_rows(const Results& results, const std::filesystem::path& folder);
// The rows of a study that was ended early. One with other settings is an error that names them
// (load_rows.cpp).
std::vector<Row> load_rows(const std::filesystem::path& folder, const Json& settings);

}  // namespace ebb::cli
