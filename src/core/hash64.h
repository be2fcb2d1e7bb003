// The 64-bit hash XXH64 (seed 0) of bytes that come in pieces: checksums of files and fingerprints.
// It detects accidental damage, not manipulation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ebb {

class Hash64 {
 public:
  Hash64& add(std::span<const std::byte> bytes);
  Hash64& add(std::string_view text) { return add(std::as_bytes(std::span(text))); }
  std::uint64_t value() const;

  // The state so far, from which another process goes on.
  static constexpr std::size_t state_bytes = 4 * 8 + 32 + 2 * 8;
  using State = std::array<std::byte, state_bytes>;
  State state() const;
  static Hash64 from(const State& state);

 private:
  static constexpr std::size_t stripe = 32;  // bytes
  void mix(const std::byte* bytes);

  std::array<std::uint64_t, 4> lanes_ = {0x60EA27EEADC0B5D6, 0xC2B2AE3D27D4EB4F, 0,
                                         0x61C8864E7A143579};
  std::array<std::byte, stripe> rest_ = {};
  std::size_t waiting_ = 0;  // bytes in rest_
  std::uint64_t length_ = 0;
};

// 16 hexadecimal digits.
std::string hex(std::uint64_t value);

}  // namespace ebb
