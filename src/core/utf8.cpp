#include "core/utf8.h"

#include <array>

namespace ebb {
namespace {

constexpr char32_t replacement = U'\uFFFD';

}  // namespace

CodePoint first_code_point(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t length = lead < 0xC2   ? 0
                             : lead < 0xE0 ? 2
                             : lead < 0xF0 ? 3
                             : lead < 0xF5 ? 4
                                           : 0;
  if (length == 0 || text.size() < length) return {replacement, 1};
  char32_t value = lead & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0u) != 0x80u) return {replacement, 1};
    value = (value << 6) | (byte(i) & 0x3Fu);
  }
  // Rejects overlong encodings, halves of surrogate pairs, and code points past the last one.
  constexpr std::array<char32_t, 5> least{0, 0, 0x80, 0x800, 0x10000};
  if (value < least[length] || (value >= 0xD800 && value <= 0xDFFF) || value > 0x10FFFF)
    return {replacement, 1};
  return {value, length};
}

void append_utf8(std::string& text, char32_t value) {
  const auto add = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (value < 0x80) return add(value);
  if (value < 0x800) return add(0xC0 | (value >> 6)), add(0x80 | (value & 0x3F));
  if (value < 0x10000) {
    add(0xE0 | (value >> 12));
  } else {
    add(0xF0 | (value >> 18)), add(0x80 | ((value >> 12) & 0x3F));
  }
  add(0x80 | ((value >> 6) & 0x3F)), add(0x80 | (value & 0x3F));
}

std::string valid_utf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const CodePoint point = first_code_point(text);
    append_utf8(valid, point.value);
    text.remove_prefix(point.length);
  }
  return valid;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const CodePoint point = first_code_point(text);
    if (point.value == replacement && point.length == 1) return false;
    text.remove_prefix(point.length);
  }
  return true;
}

}  // namespace ebb
