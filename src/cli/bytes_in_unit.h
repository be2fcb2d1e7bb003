// Formats bytes that are read side by side in one common unit.
#pragma once

#include <fmt/core.h>

#include <string>

#include "ebb/bytes.h"

namespace ebb::cli {

// `bytes` in the unit in which `most`, the largest of them, would be written.
inline std::string in_unit_of(Bytes most, Bytes bytes) {
  const std::string text = to_string(most), unit = text.substr(text.find(' ') + 1);
  if (unit == "B") return to_string(bytes);
  return fmt::format(
      "{:.2f} {}",
      static_cast<double>(bytes.count) / static_cast<double>(parse_bytes("1" + unit).count), unit);
}

}  // namespace ebb::cli
