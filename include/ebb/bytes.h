// A count of bytes. Memory sizes are never bare integers in ebb's interfaces.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace ebb {

struct Bytes {
  std::int64_t count = 0;

  friend constexpr auto operator<=>(Bytes, Bytes) = default;
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return {a.count + b.count}; }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return {a.count - b.count}; }
  friend constexpr Bytes operator*(std::int64_t n, Bytes b) { return {n * b.count}; }
  friend constexpr Bytes operator/(Bytes b, std::int64_t n) { return {b.count / n}; }
  constexpr Bytes& operator+=(Bytes other) { return count += other.count, *this; }
  constexpr Bytes& operator-=(Bytes other) { return count -= other.count, *this; }
};

// The smallest multiple of `step` that is at least `size`.
constexpr Bytes round_up(Bytes size, Bytes step) {
  return {(size.count + step.count - 1) / step.count * step.count};
}

inline namespace literals {
constexpr Bytes operator""_B(unsigned long long n) { return {static_cast<std::int64_t>(n)}; }
constexpr Bytes operator""_KiB(unsigned long long n) {
  return {static_cast<std::int64_t>(n) << 10};
}
constexpr Bytes operator""_MiB(unsigned long long n) {
  return {static_cast<std::int64_t>(n) << 20};
}
constexpr Bytes operator""_GiB(unsigned long long n) {
  return {static_cast<std::int64_t>(n) << 30};
}
}  // namespace literals

// "1536.00 MiB": the unit leaves one to four digits before the point.
std::string to_string(Bytes bytes);

// Reads "2GiB", "1.5 MiB", "300kB" or "4096"; KiB counts 1024 bytes, kB 1000.
Bytes parse_bytes(std::string_view text);

}  // namespace ebb
