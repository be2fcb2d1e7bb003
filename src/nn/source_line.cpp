#include "ebb/nn/source_line.h"

#include <fmt/core.h>

namespace ebb::nn {

std::string to_string(const SourceLine& source) {
  if (source.line == 0) return {};
  std::string_view file = source.file;
  while (file.starts_with("../")) file.remove_prefix(3);  // from a build folder inside the project
  return fmt::format("{}:{}", file, source.line);
}

}  // namespace ebb::nn
