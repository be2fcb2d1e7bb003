#include "cli/page_data.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "core/json.h"
#include "ebb/error.h"
#include "ebb/io/atomic_file.h"
#include "ebb/report/page.h"

namespace ebb::cli {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

PageData::PageData(std::string kind, Json facts, Json settings)
    : kind_(std::move(kind)), facts_(std::move(facts)), settings_(std::move(settings)) {}

void PageData::add_row(Json row, std::string timeline) {
  if (!timeline.empty())
    timelines_ += fmt::format("{}{}:{}", timelines_.empty() ? "" : ",\n", json_text(row.at("name")),
                              std::move(timeline));
  rows_.push_back(std::move(row));
}

void PageData::add_curve(const std::string& row, Json points) {
  curves_.push_back({{"row", row}, {"points", std::move(points)}});
}

Json PageData::study() const {
  return {{"format", fmt::format("ebb {} 1", kind_)},
          {"facts", facts_},
          {"settings", settings_},
          {"rows", rows_},
          {"curves", curves_}};
}

std::string PageData::html(const std::string& title) const {
  return report::html_page(
      title, fmt::format("{{\"kind\":\"{}\",\"study\":{},\"timelines\":{{\n{}\n}}}}", kind_,
                         json_text(study()), timelines_));
}

Json by_category(const CategoryBytes& bytes) {
  Json object;
  for (int c = 0; c < category_count; ++c)
    object[std::string(name(static_cast<Category>(c)))] = bytes[static_cast<Category>(c)].count;
  return object;
}

Json planned_fields(const std::string& name, const Plan& plan) {
  Json row{{"name", name},
           {"techniques", Json::array()},
           {"planned_peak_bytes", plan.peak.count},
           {"planned_by_category", by_category(plan.at_peak)},
           {"planned_arena_bytes", plan.arena().count},
           {"predicted_step_ms", plan.predicted_ms},
           {"overhead", plan.overhead()},
           {"plan_ms", plan.made_in_ms},
           {"instructions", plan.instructions.size()},
           {"recomputed_nodes", plan.recomputed_nodes()}};
  for (const Tier tier : {Tier::host, Tier::disk})
    if (plan.held[tier] > 0_B)
      row["tiers"][std::string(ebb::name(tier))] = {
          {"planned_bytes", plan.held[tier].count},
          {"fetched_bytes", plan.moved[tier].fetched.count},
          {"stored_bytes", plan.moved[tier].stored.count}};
  return row;
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw FileError(
        fmt::format("{}: cannot make the folder: {}", folder.string(), error.message()));
}

void write_file(const fs::path& path, const std::string& text) {
  io::AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace ebb::cli
