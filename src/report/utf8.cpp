#include "report/utf8.h"

#include <algorithm>
#include <iterator>

namespace ebb::report {
namespace {

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
