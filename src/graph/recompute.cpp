#include "ebb/recompute.h"

#include <fmt/core.h>

#include <array>
#include <atomic>
#include <charconv>

#include "ebb/error.h"

namespace ebb {
namespace {

using Mode = Recompute::Mode;

struct Row {
  std::string_view name;
  Mode mode;
};
constexpr std::array rows{Row{"marked", Mode::marked},       Row{"none", Mode::none},
                          Row{"blocks", Mode::blocks},       Row{"sqrt", Mode::sqrt},
                          Row{"selective", Mode::selective}, Row{"greedy", Mode::greedy},
                          Row{"auto", Mode::automatic}};
constexpr std::string_view segment_prefix = "segment=";

// Regions are numbered over the whole process: graphs of several threads never share a number.
std::atomic<std::uint32_t> last_region{0};

}  // namespace

Recompute Recompute::parse(std::string_view text) {
  for (const Row& row : rows)
    if (text == row.name) return {row.mode, 0};
  if (text.starts_with(segment_prefix)) {
    const std::string_view number = text.substr(segment_prefix.size());
    if (number == "all") return {Mode::segment, 0};
    std::int64_t segment = 0;
    const auto [end, error] = std::from_chars(number.begin(), number.end(), segment);
    if (error == std::errc{} && end == number.end() && segment >= 1)
      return {Mode::segment, segment};
  }
  throw ValueError(
      fmt::format("\"{}\" is no way to recompute; expected none, marked, blocks, sqrt, segment=N, "
                  "segment=all, selective, greedy or auto",
                  text));
}

std::string to_string(const Recompute& recompute) {
  for (const Row& row : rows)
    if (recompute.mode == row.mode) return std::string(row.name);
  return recompute.segment == 0 ? "segment=all" : fmt::format("segment={}", recompute.segment);
}

Marks in_region(Marks marks, const Checkpoint& checkpoint) {
  if (marks.checkpoint == 0) {
    marks.checkpoint = last_region.fetch_add(1, std::memory_order_relaxed) + 1;
    marks.keep_one_in = checkpoint.keep_one_in;
  }
  return marks;
}

CheckpointScope::CheckpointScope(const Checkpoint& checkpoint)
    : marks_(in_region(current_marks(), checkpoint)) {}

}  // namespace ebb
