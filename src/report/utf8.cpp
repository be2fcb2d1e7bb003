#include "report/utf8.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace ebb::report {
namespace {

constexpr char32_t replacement = U'\uFFFD';

struct Range {
  char32_t first, last;
};

// By whole blocks of Unicode where their assigned characters agree.
constexpr Range zero_width[] = {
    {0x0300, 0x036F}, {0x0483, 0x0489}, {0x0591, 0x05BD}, {0x064B, 0x065F},   {0x1AB0, 0x1AFF},
    {0x1DC0, 0x1DFF}, {0x200B, 0x200F}, {0x202A, 0x202E}, {0x2060, 0x2064},   {0x20D0, 0x20FF},
    {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}, {0xFEFF, 0xFEFF}, {0xE0001, 0xE007F}, {0xE0100, 0xE01EF},
};
constexpr Range two_columns[] = {
    {0x1100, 0x115F},   {0x231A, 0x231B},   {0x23E9, 0x23EC},   {0x2614, 0x2615},
    {0x26A1, 0x26A1},   {0x2705, 0x2705},   {0x2728, 0x2728},   {0x274C, 0x274C},
    {0x2B50, 0x2B50},   {0x2E80, 0x303E},   {0x3041, 0x4DBF},   {0x4E00, 0xA4CF},
    {0xA960, 0xA97F},   {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},
    {0xFF01, 0xFF60},   {0xFFE0, 0xFFE6},   {0x1F300, 0x1F64F}, {0x1F680, 0x1F6FF},
    {0x1F900, 0x1F9FF}, {0x1FA70, 0x1FAFF}, {0x20000, 0x3FFFD},
};

template <std::size_t n>
bool lies_in(const Range (&ranges)[n], char32_t value) {
  const Range* after =
      std::upper_bound(std::begin(ranges), std::end(ranges), value,
                       [](char32_t wanted, const Range& range) { return wanted < range.first; });
  return after != std::begin(ranges) && value <= std::prev(after)->last;
}

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
  // Overlong, half of a surrogate pair, or above the last code point.
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

int columns(char32_t value) {
  if (value < 0x300) return 1;
  return lies_in(zero_width, value) ? 0 : lies_in(two_columns, value) ? 2 : 1;
}

int columns(std::string_view text) {
  int sum = 0;
  while (!text.empty()) {
    const CodePoint point = first_code_point(text);
    sum += columns(point.value);
    text.remove_prefix(point.length);
  }
  return sum;
}

void cut_to_columns(std::string& text, int width, std::string_view ellipsis) {
  if (columns(text) <= width) return;
  const int room = width - columns(ellipsis);
  std::size_t end = 0;
  for (int used = 0; end < text.size();) {
    const CodePoint point = first_code_point(std::string_view(text).substr(end));
    used += columns(point.value);
    if (used > room) break;
    end += point.length;
  }
  text.resize(end);
  if (room >= 0) text += ellipsis;
}

}  // namespace ebb::report
