#include "ebb/bytes.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "ebb/error.h"

namespace ebb {

std::string to_string(Bytes bytes) {
  constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes.count);
  std::size_t unit = 0;
  while (std::abs(value) >= 10000.0 && unit + 1 < units.size()) value /= 1024.0, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes.count)
                   : fmt::format("{:.2f} {}", value, units[unit]);
}

Bytes parse_bytes(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, double>, 13> units{{{"", 1.0},
                                                                              {"B", 1.0},
                                                                              {"KiB", 0x1p10},
                                                                              {"MiB", 0x1p20},
                                                                              {"GiB", 0x1p30},
                                                                              {"TiB", 0x1p40},
                                                                              {"PiB", 0x1p50},
                                                                              {"kB", 1e3},
                                                                              {"KB", 1e3},
                                                                              {"MB", 1e6},
                                                                              {"GB", 1e9},
                                                                              {"TB", 1e12},
                                                                              {"b", 1.0}}};
  double number = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  if (error == std::errc{} && std::isfinite(number) && number >= 0.0) {
    for (const auto& [name, factor] : units) {
      const double bytes = number * factor;
      if (unit != name) continue;
      if (bytes < 0x1p62) return {static_cast<std::int64_t>(bytes)};
      throw ValueError(fmt::format("'{}' is too large: less than 4096PiB is expected", text));
    }
  }
  throw ValueError(fmt::format(
      "'{}' is not a number of bytes: expected a number and a unit such as 2GiB, 512MiB or 4096",
      text));
}

}  // namespace ebb
