// The lines of source code that made the modules of models, by the modules' paths.
#pragma once

#include <map>
#include <set>
#include <string>

namespace ebb::nn {
class ModuleBase;
}

namespace ebb::report {

class SourceLines {
 public:
  SourceLines() = default;
  explicit SourceLines(const nn::ModuleBase& model) { add(model); }

  void add(const nn::ModuleBase& model);

  // "models/gpt2.cpp:57" by "transformer.h.0.mlp". Leading folders that all files share are left
  // out. If modules of several models have the same path, all their lines are listed. The model
  // itself has no path and is not listed.
  std::map<std::string, std::string> by_path() const;

 private:
  std::map<std::string, std::set<std::string>> lines_;  // by path, with whole file names
};

}  // namespace ebb::report
