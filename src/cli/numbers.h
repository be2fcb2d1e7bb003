// Checks of numbers on the command line. CLI11's own let NaN and infinity pass.
#pragma once

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

namespace ebb::cli {

// What was typed, shortened for error messages.
inline std::string shortened(const std::string& text) {
  constexpr std::size_t most = 40;
  if (text.size() <= most) return text;
  std::size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

// For CLI::Option::check: a whole number from `least` to `most`.
class WholeNumber {
 public:
  static constexpr std::int64_t no_limit = std::numeric_limits<std::int64_t>::max();
  explicit WholeNumber(std::int64_t least, std::int64_t most = no_limit)
      : least_(least), most_(most) {}

  std::string operator()(const std::string& text) const {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool number = error == std::errc{} && end == text.data() + text.size();
    if (number && value >= least_ && value <= most_) return {};
    return most_ == no_limit
               ? fmt::format("a whole number of at least {} is expected, but \"{}\" {}", least_,
                             shortened(text),
                             error == std::errc::result_out_of_range && !text.starts_with('-')
                                 ? "is too large: the most is about 9 · 10^18"
                                 : "came")
               : fmt::format("a whole number from {} to {} is expected, but \"{}\" came", least_,
                             most_, shortened(text));
  }

 private:
  std::int64_t least_, most_;
};

// For CLI::Option::check: a finite number that is at least, or more than, `least` and at most
// `most`. Steps use it in float32, where it must neither overflow nor become 0.
class FiniteNumber {
 public:
  static FiniteNumber positive() { return {0.0, false}; }
  static FiniteNumber not_negative() { return {0.0, true}; }
  static FiniteNumber between(double least, double most) { return {least, true, most}; }

  std::string operator()(const std::string& text) const {
    double value = 0.0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool number = error == std::errc{} && end == text.data() + text.size();
    const bool held = std::abs(value) <= std::numeric_limits<float>::max() &&
                      (value == 0.0 || static_cast<float>(value) != 0.0f);
    if (number && held && (value > least_ || (includes_ && value == least_)) && value <= most_)
      return {};
    const std::string wrong = number && std::isfinite(value) && !held
                                  ? fmt::format("{} is too {} for float32", shortened(text),
                                                std::abs(value) < 1.0 ? "small" : "large")
                                  : shortened(text) + " came";
    return std::isfinite(most_)
               ? fmt::format("a number between {} and {} is expected, but {}", least_, most_, wrong)
               : fmt::format("a finite number {} {} is expected, but {}",
                             includes_ ? "of at least" : "above", least_, wrong);
  }

 private:
  FiniteNumber(double least, bool includes, double most = std::numeric_limits<double>::infinity())
      : least_(least), includes_(includes), most_(most) {}

  double least_;
  bool includes_;
  double most_;
};

// For CLI::Option::check: a seed. CLI11's parser alone would turn larger numbers into the largest
// seed, and negative ones into their 64 bits read without a sign.
inline std::string seed_problem(const std::string& text) {
  std::uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error == std::errc{} && end == text.data() + text.size()) return {};
  return fmt::format("a whole number from 0 to 2^64 - 1 is expected, but \"{}\" came",
                     shortened(text));
}

}  // namespace ebb::cli
