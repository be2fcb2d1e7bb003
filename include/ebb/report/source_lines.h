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

  // "models/gpt2.cpp:57" by "transformer.h.0.mlp". Folders that all files lie in are left out.
  // Modules of several models may have the same path; then all lines are told. A model itself has
  // no path and is not there.
  std::map<std::string, std::string> by_path() const;

 private:
  std::map<std::string, std::set<std::string>> lines_;  // by path, with whole file names
};

}  // namespace ebb::report
