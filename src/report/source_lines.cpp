#include "ebb/report/source_lines.h"

#include <algorithm>
#include <optional>

#include "ebb/nn/module.h"

namespace ebb::report {

void SourceLines::add(const nn::ModuleBase& model) {
  for (const nn::ModuleBase* module : model.modules()) {
    std::string line = to_string(module->source());
    if (!module->path().empty() && !line.empty()) lines_[module->path()].insert(std::move(line));
  }
}

std::map<std::string, std::string> SourceLines::by_path() const {
  std::optional<std::string> common;  // folders, with a slash at the end
  for (const auto& [path, lines] : lines_)
    for (const std::string& line : lines) {
      if (!common) common = line;
      const auto differ = std::mismatch(common->begin(), common->end(), line.begin(), line.end());
      common->erase(differ.first, common->end());
      common->erase(common->rfind('/') + 1);  // all of it where there is none
    }
  std::map<std::string, std::string> result;
  for (const auto& [path, lines] : lines_)
    for (const std::string& line : lines) {
      std::string& told = result[path];
      told += (told.empty() ? "" : " or ") + line.substr(common->size());
    }
  return result;
}

}  // namespace ebb::report
