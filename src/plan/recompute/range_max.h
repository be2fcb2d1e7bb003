// Numbers at positions 0 to n - 1 in a segment tree: adds to a range and finds the maximum of a
// range in O(log n).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace ebb::planning {

class RangeMax {
 public:
  explicit RangeMax(std::span<const std::int64_t> numbers)
      : size_(std::max<std::size_t>(1, numbers.size())), most_(4 * size_), added_(4 * size_) {
    if (!numbers.empty()) build(1, 0, size_, numbers);
  }

  // Ranges are [begin, end).
  void add(int begin, int end, std::int64_t amount) {
    if (begin < end)
      add(1, 0, size_, static_cast<std::size_t>(begin), static_cast<std::size_t>(end), amount);
  }
  std::int64_t most(int begin, int end) const {
    if (begin >= end) return lowest;
    return most(1, 0, size_, static_cast<std::size_t>(begin), static_cast<std::size_t>(end));
  }

 private:
  static constexpr std::int64_t lowest = std::numeric_limits<std::int64_t>::min() / 2;

  void build(std::size_t node, std::size_t low, std::size_t high,
             std::span<const std::int64_t> numbers) {
    if (high - low == 1) {
      most_[node] = numbers[low];
      return;
    }
    const std::size_t middle = (low + high) / 2;
    build(2 * node, low, middle, numbers), build(2 * node + 1, middle, high, numbers);
    most_[node] = std::max(most_[2 * node], most_[2 * node + 1]);
  }

  // `most_[node]` includes what was added to the node or below it, but not to its ancestors.
  void add(std::size_t node, std::size_t low, std::size_t high, std::size_t begin, std::size_t end,
           std::int64_t amount) {
    if (end <= low || high <= begin) return;
    if (begin <= low && high <= end) {
      most_[node] += amount, added_[node] += amount;
      return;
    }
    const std::size_t middle = (low + high) / 2;
    add(2 * node, low, middle, begin, end, amount);
    add(2 * node + 1, middle, high, begin, end, amount);
    most_[node] = std::max(most_[2 * node], most_[2 * node + 1]) + added_[node];
  }
  std::int64_t most(std::size_t node, std::size_t low, std::size_t high, std::size_t begin,
                    std::size_t end) const {
    if (end <= low || high <= begin) return lowest;
    if (begin <= low && high <= end) return most_[node];
    const std::size_t middle = (low + high) / 2;
    return added_[node] + std::max(most(2 * node, low, middle, begin, end),
                                   most(2 * node + 1, middle, high, begin, end));
  }

  std::size_t size_;
  std::vector<std::int64_t> most_, added_;
};

}  // namespace ebb::planning
