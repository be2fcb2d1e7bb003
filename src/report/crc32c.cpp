#include "report/crc32c.h"

#include <array>

namespace ebb::report {
namespace {

// Effect of one byte on the remainder; the polynomial 0x1EDC6F41 with its bits reversed.
constexpr std::array<std::uint32_t, 256> table = [] {
  std::array<std::uint32_t, 256> remainders{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit)
      remainder = (remainder >> 1) ^ ((remainder & 1u) != 0 ? 0x82F63B78u : 0u);
    remainders[byte] = remainder;
  }
  return remainders;
}();

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t remainder = ~0u;
  for (const char c : bytes)
    remainder = (remainder >> 8) ^ table[(remainder ^ static_cast<unsigned char>(c)) & 0xFFu];
  return ~remainder;
}

}  // namespace ebb::report
