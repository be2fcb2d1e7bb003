// UTF-8 as logs and terminals need it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ebb::report {

struct CodePoint {
  char32_t value = 0;      // U+FFFD for bytes that are not UTF-8
  std::size_t length = 0;  // bytes read, at least 1
};

// The code point `text` begins with; `text` is not empty.
CodePoint first_code_point(std::string_view text);

void append_utf8(std::string& text, char32_t code_point);

// `text` with each byte that is not UTF-8 replaced by U+FFFD.
std::string valid_utf8(std::string_view text);

// Terminal columns of one code point: 0 for marks that combine, 2 for East Asian wide characters
// and most emoji, otherwise 1.
int columns(char32_t code_point);
int columns(std::string_view text);

// The beginning of `text` that fits; ends in an ellipsis if text was cut.
void cut_to_columns(std::string& text, int width, std::string_view ellipsis);

}  // namespace ebb::report
