// What every dataset checks before it makes a batch.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "ebb/error.h"

namespace ebb::data {

inline void check_items(std::string_view dataset, std::span<const std::int64_t> items,
                        std::int64_t size) {
  for (std::int64_t item : items)
    if (item < 0 || item >= size)
      throw ValueError(
          fmt::format("[{}] item {} was asked for, but there are {}", dataset, item, size));
}

inline void require(bool holds, std::string_view dataset, const std::string& what) {
  if (!holds) throw ValueError(fmt::format("[{}] {}", dataset, what));
}

}  // namespace ebb::data
