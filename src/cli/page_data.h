// The data of the page (src/report/page/data.js describes it), and the files of a result.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "ebb/plan.h"

namespace ebb::cli {

class PageData {
 public:
  using Json = nlohmann::ordered_json;

  // `kind` is ablation, profile or frontier.
  PageData(std::string kind, Json facts, Json settings);

  // A row with its "name", and its timeline as report::timeline_json gives it.
  void add_row(Json row, std::string timeline);
  void add_curve(const std::string& row, Json points);

  Json study() const;  // without the timelines
  std::string html(const std::string& title) const;

 private:
  std::string kind_;
  Json facts_, settings_, rows_ = Json::array(), curves_ = Json::array();
  std::string timelines_;  // members of an object
};

// The fields of a row that come from its plan.
nlohmann::ordered_json planned_fields(const std::string& name, const Plan& plan);
nlohmann::ordered_json by_category(const CategoryBytes& bytes);

// Both throw a FileError that names the path. Files appear whole.
void make_folder(const std::filesystem::path& folder);
void write_file(const std::filesystem::path& path, const std::string& text);

}  // namespace ebb::cli
