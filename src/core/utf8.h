// Reading and writing UTF-8, one code point at a time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ebb {

struct CodePoint {
  char32_t value = 0;      // U+FFFD for bytes that are not UTF-8
  std::size_t length = 0;  // bytes read, at least 1
};

// The code point `text` begins with; `text` is not empty.
CodePoint first_code_point(std::string_view text);

void append_utf8(std::string& text, char32_t code_point);

// `text` with each byte that is not UTF-8 replaced by U+FFFD.
std::string valid_utf8(std::string_view text);

bool is_utf8(std::string_view text);

}  // namespace ebb
