// Where bytes can be: a device's own memory is the fastest and smallest tier.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ebb {

enum class Tier : std::uint8_t {
  device,  // memory that kernels use directly; for the CPU, main memory
  host,    // pinned main memory, for a GPU
  disk,    // a file
};
inline constexpr int tier_count = 3;
inline constexpr std::array<std::string_view, tier_count> tier_names = {"device", "host", "disk"};
inline std::string_view name(Tier tier) { return tier_names[static_cast<std::size_t>(tier)]; }

// One value for every tier.
template <class T>
struct ByTier {
  std::array<T, tier_count> values{};
  T& operator[](Tier tier) { return values[static_cast<std::size_t>(tier)]; }
  const T& operator[](Tier tier) const { return values[static_cast<std::size_t>(tier)]; }
};

}  // namespace ebb
