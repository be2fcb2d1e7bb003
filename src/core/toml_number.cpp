#include "core/toml_number.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace ebb::toml {
namespace {

// The digits without underscores; each underscore must stand between two digits.
std::optional<std::string> digits_of(std::string_view text, int base) {
  const auto digit_at = [&](std::size_t at) {
    const int value = at < text.size() ? hex_digit(text[at]) : -1;
    return value >= 0 && value < base;
  };
  std::string digits;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (digit_at(i))
      digits += text[i];
    else if (text[i] != '_' || i == 0 || !digit_at(i - 1) || !digit_at(i + 1))
      return {};
  }
  if (digits.empty()) return {};
  return digits;
}

// Decimal digits. A zero at the beginning must be the only digit.
std::optional<std::string> decimal(std::string_view text) {
  std::optional<std::string> digits = digits_of(text, 10);
  if (digits && digits->size() > 1 && (*digits)[0] == '0') return {};
  return digits;
}

template <class T>
ReadNumber found(T number) {
  ReadNumber read;
  read.value.emplace().data = number;
  return read;
}

ReadNumber whole(const std::optional<std::string>& digits, int base, bool negative) {
  if (!digits) return {};
  std::uint64_t magnitude = 0;
  const auto [end, error] =
      std::from_chars(digits->data(), digits->data() + digits->size(), magnitude, base);
  constexpr std::uint64_t half = std::uint64_t{1} << 63;
  if (error != std::errc{} || (negative && magnitude > half)) return {{}, true};
  if (negative) return found(static_cast<std::int64_t>(~magnitude + 1));
  if (magnitude >= half) return found(magnitude);
  return found(static_cast<std::int64_t>(magnitude));
}

// Digits, followed by a fraction, an exponent or both.
ReadNumber real(std::string_view text, bool negative) {
  const std::size_t exponent_at = std::min(text.find_first_of("eE"), text.size());
  const std::string_view mantissa = text.substr(0, exponent_at);
  const std::size_t point = mantissa.find('.');
  const std::optional<std::string> before = decimal(mantissa.substr(0, point));
  if (!before) return {};
  std::string plain = (negative ? "-" : "") + *before;
  if (point != std::string_view::npos) {
    const std::optional<std::string> after = digits_of(mantissa.substr(point + 1), 10);
    if (!after) return {};
    plain += '.' + *after;
  }
  if (exponent_at < text.size()) {
    std::string_view exponent = text.substr(exponent_at + 1);
    const bool sign = exponent.starts_with('+') || exponent.starts_with('-');
    plain += exponent.starts_with('-') ? "e-" : "e";
    const std::optional<std::string> digits = digits_of(exponent.substr(sign ? 1 : 0), 10);
    if (!digits) return {};
    plain += *digits;
  }
  double value = 0.0;
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  if (error != std::errc{}) return {{}, true};
  return found(value);
}

}  // namespace

int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

ReadNumber read_number(std::string_view word) {
  const bool negative = word.starts_with('-'), sign = negative || word.starts_with('+');
  const std::string_view rest = word.substr(sign ? 1 : 0);
  if (rest == "inf" || rest == "nan") {
    const double value = rest == "inf" ? std::numeric_limits<double>::infinity()
                                       : std::numeric_limits<double>::quiet_NaN();
    return found(std::copysign(value, negative ? -1.0 : 1.0));
  }
  if (rest.size() > 1 && rest[0] == '0' && (rest[1] == 'x' || rest[1] == 'o' || rest[1] == 'b')) {
    const int base = rest[1] == 'x' ? 16 : rest[1] == 'o' ? 8 : 2;
    return sign ? ReadNumber{} : whole(digits_of(rest.substr(2), base), base, false);
  }
  if (rest.find_first_of(".eE") != std::string_view::npos) return real(rest, negative);
  return whole(decimal(rest), 10, negative);
}

bool is_date(std::string_view word) {
  const auto digits = [&](std::size_t at, std::size_t count) {
    const std::string_view part = word.substr(std::min(at, word.size()), count);
    return part.size() == count && std::all_of(part.begin(), part.end(), is_digit);
  };
  const auto is = [&](std::size_t at, char c) { return at < word.size() && word[at] == c; };
  return (digits(0, 4) && is(4, '-') && digits(5, 2)) ||
         (digits(0, 2) && is(2, ':') && digits(3, 2));
}

std::string number(double value) {
  std::string text = std::isnan(value) ? "nan" : fmt::format("{}", value);
  const bool looks_whole = text.find_first_of(".ein") == std::string::npos;
  return looks_whole ? text + ".0" : text;
}

}  // namespace ebb::toml
