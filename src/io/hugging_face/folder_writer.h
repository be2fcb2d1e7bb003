// A model folder that is written one parameter at a time, in any order: the same files that `save`
// and `save_packed` write, for models that are never in memory as a whole.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>

#include "io/hugging_face/form.h"
#include "io/safetensors_parts.h"

namespace ebb::io {

class FolderWriter {
 public:
  // `model` has the shapes and dtypes of what is written and needs no values. Weights that it has
  // packed are written packed.
  FolderWriter(const nn::ModuleBase& model, const std::filesystem::path& folder);

  // Writes the bytes of a parameter, or of a parameter's positions: as many as its type has.
  void write(const std::string& parameter, std::span<const std::byte> bytes);
  bool has(const std::string& parameter) const { return written_.contains(parameter); }
  // How a parameter is stored.
  const nn::NamedVariable& form(const std::string& parameter) const {
    return parameters_.at(parameter);
  }
  // Puts the tensors and config.json in place. Every parameter must have been written.
  void commit();

 private:
  std::filesystem::path folder_;
  FolderForm form_;
  std::map<std::string, nn::NamedVariable> parameters_;
  SafetensorsParts file_;
  std::set<std::string> written_;
};

}  // namespace ebb::io
