// Numbers of TOML.
#pragma once

#include <optional>
#include <string_view>

#include "core/toml.h"

namespace ebb::toml {

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
int hex_digit(char c);  // its value, or -1

struct ReadNumber {
  std::optional<Value> value;  // none: the word is no number, or too large
  bool too_large = false;      // it is one, but 64 bits do not hold it
};
// From a word such as "-1_000", "0xFF", "6.02e23" or "inf".
ReadNumber read_number(std::string_view word);

// Whether a word that is no number is the beginning of a date or a time.
bool is_date(std::string_view word);

}  // namespace ebb::toml
