#include "cli/run_summary.h"

#include <fmt/core.h>

#include <iostream>

#include "cli/page_data.h"
#include "cli/run_facts.h"
#include "core/json.h"
#include "ebb/version.h"

namespace ebb::cli {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

void write_summary_page(const fs::path& folder, Outputs& outputs) {
  try {
    const LoggedSummary summary = read_summary(folder);
    write_file(folder / "summary.html",
               summary_page(fmt::format("ebb: {}", summary.name), {summary}));
  } catch (const FileError& error) {
    outputs.note("the summary", error.what());
  }
}

void write_summary(const fs::path& folder, const Json& fields, const std::string& options,
                   Outputs& outputs) {
  Json facts{{"command", command_line()}, {"date", today()}, {"version", version()}};
  facts.update(fields);
  facts["options"] = parse_ordered_json(options);
  if (!outputs.run().empty()) facts["log"] = outputs.run();
  try {
    write_file(folder / "run.json", json_text(facts, 1) + "\n");
  } catch (const FileError& error) {
    outputs.note("the summary", error.what());
    return;
  }
  write_summary_page(folder, outputs);
}

}  // namespace ebb::cli
