#include "plan/arena_layout.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace ebb {
namespace {

struct Item {
  int first, last;  // instructions, both included
  std::int64_t size, offset;
};

// Where the next item may lie, over time: stretches [begin, end) of equal height.
class Skyline {
 public:
  explicit Skyline(int end) : stretches_{{0, end, 0}} {}

  struct Stretch {
    int begin, end;
    std::int64_t height;
  };

  std::size_t lowest() const {
    const auto at =
        std::min_element(stretches_.begin(), stretches_.end(),
                         [](const Stretch& a, const Stretch& b) { return a.height < b.height; });
    return static_cast<std::size_t>(at - stretches_.begin());
  }
  const Stretch& operator[](std::size_t i) const { return stretches_[i]; }

  // Puts an item that fits into stretch `i` on top of it.
  void place(std::size_t i, const Item& item) {
    const Stretch under = stretches_[i];
    std::vector<Stretch> parts;
    if (under.begin < item.first) parts.push_back({under.begin, item.first, under.height});
    parts.push_back({item.first, item.last + 1, under.height + item.size});
    if (item.last + 1 < under.end) parts.push_back({item.last + 1, under.end, under.height});
    const auto at = stretches_.begin() + static_cast<std::ptrdiff_t>(i);
    *at = parts[0];
    stretches_.insert(at + 1, parts.begin() + 1, parts.end());
  }

  // Raises stretch `i` to its lower neighbour and joins them: nothing that is left fits below.
  void lift(std::size_t i) {
    const std::int64_t left =
        i > 0 ? stretches_[i - 1].height : std::numeric_limits<std::int64_t>::max();
    const std::int64_t right = i + 1 < stretches_.size() ? stretches_[i + 1].height
                                                         : std::numeric_limits<std::int64_t>::max();
    stretches_[i].height = std::min(left, right);
    if (right == stretches_[i].height) join(i);
    if (left == stretches_[i].height) join(i - 1);
  }

 private:
  void join(std::size_t i) {
    stretches_[i].end = stretches_[i + 1].end;
    stretches_.erase(stretches_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
  }
  std::vector<Stretch> stretches_;
};

// Fills the block from the bottom (after Sekiyama et al., 2018): at the lowest stretch of the
// skyline goes the first item of `order` that fits into it. Returns the size of the block.
std::int64_t fill(std::vector<Item>& items, const std::vector<int>& given, int end) {
  std::vector<int> order = given;
  Skyline skyline(end);
  std::int64_t total = 0;
  while (!order.empty()) {
    const std::size_t i = skyline.lowest();
    const Skyline::Stretch here = skyline[i];
    const auto fits = std::find_if(order.begin(), order.end(), [&](int index) {
      const Item& item = items[static_cast<std::size_t>(index)];
      return item.first >= here.begin && item.last < here.end;
    });
    if (fits == order.end()) {
      skyline.lift(i);
      continue;
    }
    Item& item = items[static_cast<std::size_t>(*fits)];
    item.offset = here.height;
    total = std::max(total, item.offset + item.size);
    skyline.place(i, item);
    order.erase(fits);
  }
  return total;
}

// Places items in `order`, each at the lowest offset where none of those placed before that live at
// the same time is in the way. Returns the size of the block.
std::int64_t first_fit(std::vector<Item>& items, const std::vector<int>& order, int) {
  std::vector<int> placed;  // by offset
  std::int64_t total = 0;
  for (const int index : order) {
    Item& item = items[static_cast<std::size_t>(index)];
    item.offset = 0;
    for (const int other : placed) {
      const Item& there = items[static_cast<std::size_t>(other)];
      if (there.last < item.first || there.first > item.last) continue;
      if (there.offset >= item.offset + item.size) break;  // the gap below it is enough
      item.offset = std::max(item.offset, there.offset + there.size);
    }
    total = std::max(total, item.offset + item.size);
    const auto above = std::upper_bound(
        placed.begin(), placed.end(), item.offset,
        [&](std::int64_t at, int i) { return at < items[static_cast<std::size_t>(i)].offset; });
    placed.insert(above, index);
  }
  return total;
}

// Orders that suit different steps: long-lived buffers first, those that block most for longest
// first, large ones first.
std::vector<std::vector<int>> orders(const std::vector<Item>& items) {
  const auto sorted = [&](auto&& key) {
    std::vector<int> order(items.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return key(items[static_cast<std::size_t>(a)]) > key(items[static_cast<std::size_t>(b)]);
    });
    return order;
  };
  const auto length = [](const Item& i) { return static_cast<std::int64_t>(i.last - i.first + 1); };
  return {sorted([&](const Item& i) { return std::pair(length(i), i.size); }),
          sorted([&](const Item& i) { return i.size * length(i); }),
          sorted([](const Item& i) { return i.size; })};
}

// Whoever ended above the least possible size goes to the front of the next try.
void complaints_first(std::vector<int>& order, const std::vector<Item>& items, std::int64_t least) {
  std::stable_partition(order.begin(), order.end(), [&](int index) {
    const Item& item = items[static_cast<std::size_t>(index)];
    return item.offset + item.size > least;
  });
}

constexpr double good_enough = 1.001;     // of the least possible size
constexpr double most_comparisons = 4e7;  // in all tries: about a tenth of a second
constexpr int most_tries = 24;            // for each order, each way

}  // namespace

Bytes lay_out(std::span<Buffer> buffers) {
  std::vector<std::size_t> indices;
  std::vector<Item> items;
  int end = 0;
  for (std::size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].in_arena()) {
      end = std::max(end, buffers[i].last + 1);
      if (buffers[i].size.count == 0) continue;
      indices.push_back(i);
      items.push_back({buffers[i].first, buffers[i].last, buffers[i].size.count, 0});
    }
  const std::int64_t least = live_peak(buffers, end).bytes.count;
  const std::int64_t wanted = static_cast<std::int64_t>(static_cast<double>(least) * good_enough);
  const double pairs = static_cast<double>(items.size()) * static_cast<double>(items.size());
  const int tries =
      std::clamp(static_cast<int>(most_comparisons / std::max(1.0, pairs)), 1, most_tries);

  std::vector<Item> best;
  std::int64_t total = std::numeric_limits<std::int64_t>::max();
  for (const auto way : {fill, first_fit})
    for (std::vector<int>& order : orders(items))
      for (int i = 0; i < tries && total > wanted; ++i) {
        const std::int64_t size = way(items, order, end);
        complaints_first(order, items, least);
        if (size < total) total = size, best = items;
      }
  for (std::size_t i = 0; i < indices.size(); ++i) buffers[indices[i]].offset = {best[i].offset};
  return {indices.empty() ? 0 : total};
}

LivePeak live_peak(std::span<const Buffer> buffers, int instructions) {
  std::vector<Bytes> change(static_cast<std::size_t>(instructions) + 2);
  for (const Buffer& buffer : buffers)
    if (buffer.in_arena()) {
      change[static_cast<std::size_t>(buffer.first)] += buffer.size;
      change[static_cast<std::size_t>(buffer.last) + 1] -= buffer.size;
    }
  LivePeak peak;
  Bytes live;
  for (int i = 0; i <= instructions; ++i) {
    live += change[static_cast<std::size_t>(i)];
    if (live > peak.bytes) peak = {live, i};
  }
  return peak;
}

}  // namespace ebb
