// Where a tensor's bytes live and its kernels run.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace ebb {

struct Device {
  enum class Kind : std::uint8_t { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;

  friend constexpr auto operator<=>(const Device&, const Device&) = default;
};

namespace device {
inline constexpr Device cpu{};
constexpr Device cuda(int index = 0) { return {Device::Kind::cuda, index}; }
}  // namespace device

std::string to_string(Device device);  // "cpu", "cuda:0"

}  // namespace ebb
