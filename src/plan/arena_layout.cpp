#include "plan/arena_layout.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

namespace ebb::planning {
namespace {

struct Item {
  int first, last;  // live range in instructions, both ends included
  std::int64_t size, offset;
};

// The lowest free offset above all placed items, as a function of time: stretches [begin, end) of
// instructions with equal height.
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

  // Puts an item on top of stretch `i`, which must contain the item's live range.
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

  // Raises stretch `i` to the height of its lower neighbour and merges the two, for when no
  // unplaced item fits into the stretch. Returns the difference in height.
  std::int64_t lift(std::size_t i) {
    const std::int64_t left =
        i > 0 ? stretches_[i - 1].height : std::numeric_limits<std::int64_t>::max();
    const std::int64_t right = i + 1 < stretches_.size() ? stretches_[i + 1].height
                                                         : std::numeric_limits<std::int64_t>::max();
    const std::int64_t height = std::min(left, right);
    const std::int64_t by = height - std::exchange(stretches_[i].height, height);
    if (right == height) join(i);
    if (left == height) join(i - 1);
    return by;
  }

 private:
  void join(std::size_t i) {
    stretches_[i].end = stretches_[i + 1].end;
    stretches_.erase(stretches_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
  }
  std::vector<Stretch> stretches_;
};

// Bytes live at every instruction.
std::vector<std::int64_t> loads(const std::vector<Item>& items, int end) {
  std::vector<std::int64_t> result(static_cast<std::size_t>(end) + 1);
  for (const Item& item : items) {
    result[static_cast<std::size_t>(item.first)] += item.size;
    result[static_cast<std::size_t>(item.last) + 1] -= item.size;
  }
  std::partial_sum(result.begin(), result.end(), result.begin());
  return result;
}

// The unplaced items, in the order in which an attempt prefers them.
class Waiting {
 public:
  Waiting(const std::vector<Item>& items, std::vector<int> order, int end)
      : items_(items),
        order_(std::move(order)),
        rank_(items.size()),
        starting_(static_cast<std::size_t>(end)) {
    for (std::size_t r = 0; r < order_.size(); ++r) {
      const int index = order_[r];
      rank_[static_cast<std::size_t>(index)] = static_cast<int>(r);
      starting_[static_cast<std::size_t>(item(index).first)].push_back(index);
    }
  }

  bool empty() const { return order_.empty(); }

  std::vector<int> alive_at(int instruction) const {
    std::vector<int> result;
    std::copy_if(order_.begin(), order_.end(), std::back_inserter(result), [&](int index) {
      return item(index).first <= instruction && instruction <= item(index).last;
    });
    return result;
  }

  // The first item in order whose live range is within [begin, end), or -1. For a long stretch the
  // order is scanned, since one of the first items usually fits. For a short stretch only the few
  // items that start in it are compared.
  int first_within(int begin, int end) const {
    const auto fits = [&](int index) {
      return item(index).first >= begin && item(index).last < end;
    };
    if (static_cast<std::size_t>(end - begin) > order_.size() / 8) {
      const auto found = std::find_if(order_.begin(), order_.end(), fits);
      return found == order_.end() ? -1 : *found;
    }
    int best = -1;
    for (int t = begin; t < end; ++t)
      for (int index : starting_[static_cast<std::size_t>(t)]) {
        if (best >= 0 && rank(index) > rank(best)) break;
        if (item(index).last < end) best = index;
      }
    return best;
  }

  void remove(int index) {
    const auto before = [&](int a, int b) { return rank(a) < rank(b); };
    for (std::vector<int>* list :
         {&order_, &starting_[static_cast<std::size_t>(item(index).first)]})
      list->erase(std::lower_bound(list->begin(), list->end(), index, before));
  }

 private:
  const Item& item(int index) const { return items_[static_cast<std::size_t>(index)]; }
  int rank(int index) const { return rank_[static_cast<std::size_t>(index)]; }

  const std::vector<Item>& items_;
  std::vector<int> order_, rank_;
  std::vector<std::vector<int>> starting_;  // items by their first instruction, in order
};

// Fills a block of `capacity` bytes from the bottom (after Sekiyama et al., 2018): the first item
// of `order` that fits into the lowest stretch of the skyline is placed on it. If none fits, the
// stretch is lifted and the bytes below it are wasted. The attempt fails at the first instruction
// whose live plus wasted bytes exceed the capacity; it then returns the unplaced items that are
// live at that instruction. Returns nothing on success.
std::optional<std::vector<int>> fill(std::vector<Item>& items, std::vector<int> order,
                                     std::vector<std::int64_t> load, std::int64_t capacity) {
  const int end = static_cast<int>(load.size()) - 1;
  Skyline skyline(end);
  Waiting waiting(items, std::move(order), end);
  while (!waiting.empty()) {
    const std::size_t i = skyline.lowest();
    const Skyline::Stretch here = skyline[i];
    const int fitting = waiting.first_within(here.begin, here.end);
    if (fitting >= 0) {
      Item& item = items[static_cast<std::size_t>(fitting)];
      item.offset = here.height;
      skyline.place(i, item);
      waiting.remove(fitting);
      continue;
    }
    const std::int64_t wasted = skyline.lift(i);
    for (int t = here.begin; t < here.end; ++t)
      if ((load[static_cast<std::size_t>(t)] += wasted) > capacity) return waiting.alive_at(t);
  }
  return {};
}

// Items that have their offsets, sorted by these. In arrays of their own, so that many live ranges
// are compared at once.
class Placed {
 public:
  explicit Placed(std::vector<Item> items = {}) {
    std::sort(items.begin(), items.end(),
              [](const Item& a, const Item& b) { return a.offset < b.offset; });
    for (const Item& item : items) insert(offset_.size(), item);
  }

  // Gives an item the lowest offset at which it overlaps none of the others, and adds it to them.
  void put_into_gap(Item& item) {
    item.offset = 0;
    find_gap(item);
    const auto above = std::upper_bound(offset_.begin(), offset_.end(), item.offset);
    insert(static_cast<std::size_t>(above - offset_.begin()), item);
  }

 private:
  static constexpr std::size_t at_once = 64;

  void find_gap(Item& item) const {
    std::array<std::uint8_t, at_once> live{};  // whether the others are live together with the item
    for (std::size_t begin = 0; begin < offset_.size(); begin += at_once) {
      const std::size_t count = std::min(at_once, offset_.size() - begin);
      for (std::size_t k = 0; k < count; ++k)
        live[k] = static_cast<std::uint8_t>((first_[begin + k] <= item.last) &
                                            (last_[begin + k] >= item.first));
      for (std::size_t k = 0; k < count; ++k) {
        if (!live[k]) continue;
        if (offset_[begin + k] >= item.offset + item.size) return;
        item.offset = std::max(item.offset, end_[begin + k]);
      }
    }
  }

  void insert(std::size_t place, const Item& item) {
    const auto into = [&](auto& list, auto value) {
      list.insert(list.begin() + static_cast<std::ptrdiff_t>(place), value);
    };
    into(first_, item.first), into(last_, item.last);
    into(offset_, item.offset), into(end_, item.offset + item.size);
  }

  std::vector<int> first_, last_;           // live ranges
  std::vector<std::int64_t> offset_, end_;  // bytes
};

// Places items one after another, each into the lowest gap that holds it: slower than `fill`, but
// better for long steps with thousands of items. Returns the items that end above `capacity`.
std::vector<int> fill_gaps(std::vector<Item>& items, const std::vector<int>& order,
                           std::int64_t capacity) {
  Placed placed;
  std::vector<int> above;
  for (int index : order) {
    Item& item = items[static_cast<std::size_t>(index)];
    placed.put_into_gap(item);
    if (item.offset + item.size > capacity) above.push_back(index);
  }
  return above;
}

// An order of items by importance. Items that an attempt could not place well become more important
// and are placed earlier in the next attempt.
class Importance {
 public:
  template <class Key>
  Importance(const std::vector<Item>& items, const Key& key) {
    for (const Item& item : items) importance_.push_back(key(item));
    step_ = 0.05 * *std::max_element(importance_.begin(), importance_.end());
  }

  std::vector<int> order() const {
    std::vector<int> result(importance_.size());
    std::iota(result.begin(), result.end(), 0);
    std::stable_sort(result.begin(), result.end(), [&](int a, int b) {
      return importance_[static_cast<std::size_t>(a)] > importance_[static_cast<std::size_t>(b)];
    });
    return result;
  }

  void raise(const std::vector<int>& items) {
    for (int index : items) importance_[static_cast<std::size_t>(index)] += step_;
  }

 private:
  std::vector<double> importance_;
  double step_;
};

// Waste is the part of the block above the lower bound (the most bytes live at once), as a share of
// that bound. `wastes` are tried in ascending order. Before exceeding `worst_waste` the search
// tries harder: more attempts, and gap filling.
constexpr double wastes[] = {0.0, 0.001, 0.003, 0.01}, worst_waste = 0.01;
constexpr double wastes_if_must_be[] = {0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2};
constexpr double most_comparisons = 5e6;  // of items, for each waste and order
constexpr double most_tries = 40;
constexpr int tries_for_worst = 80, tries_for_enough = 12;
constexpr int gap_tries_for_enough = 3;
constexpr double most_gap_comparisons = 1e9;  // of items, for each order
constexpr double small_share = 0.001;         // of the lower bound: smaller items are not searched

std::int64_t top(const std::vector<Item>& items) {
  std::int64_t result = 0;
  for (const Item& item : items) result = std::max(result, item.offset + item.size);
  return result;
}

// Searches for offsets of all items with as little waste as it finds, or with which they take no
// more than `enough`.
void search(std::vector<Item>& items, int end, std::int64_t enough) {
  if (items.empty()) return;
  const std::vector<std::int64_t> load = loads(items, end);
  const double least = static_cast<double>(*std::max_element(load.begin(), load.end()));
  const auto capacity = [&](double waste) {
    return static_cast<std::int64_t>(least * (1.0 + waste));
  };
  const double count = static_cast<double>(items.size());
  const auto tries = [&](double comparisons) {
    return static_cast<int>(std::clamp(comparisons / (count * count), 1.0, most_tries));
  };

  // Three orders: longest live range first, largest size × live range first, largest size first.
  const auto length = [](const Item& i) { return static_cast<double>(i.last - i.first + 1); };
  const auto size = [](const Item& i) { return static_cast<double>(i.size); };
  const auto area = [&](const Item& i) { return length(i) * size(i); };
  Importance orders[] = {
      {items, [&](const Item& i) { return length(i) + size(i) / (least + 1.0); }},
      {items, area},
      {items, size},
  };
  const double aim = static_cast<double>(enough) / least - 1.0;  // the waste that `enough` allows
  const bool aims = enough > 0 && aim >= 0.0;
  const auto filled = [&](double waste) {
    const int most =
        std::max(tries(most_comparisons), aims && waste == aim            ? tries_for_enough
                                          : waste == worst_waste && !aims ? tries_for_worst
                                                                          : 1);
    for (Importance& importance : orders)
      for (int i = 0; i < most; ++i) {
        const auto unplaced = fill(items, importance.order(), load, capacity(waste));
        if (!unplaced) return true;
        importance.raise(*unplaced);
      }
    return false;
  };
  if (aims && filled(aim)) return;
  for (double waste : wastes)
    if (!aims && filled(waste)) return;

  std::vector<Item> best;
  const int gap_tries = aims ? gap_tries_for_enough : tries(most_gap_comparisons);
  for (Importance importance : {Importance(items, area), Importance(items, size)})
    for (int i = 0; i < gap_tries; ++i) {
      const std::vector<int> above =
          fill_gaps(items, importance.order(), capacity(aims ? aim : worst_waste));
      if (above.empty()) return;
      if (best.empty() || top(items) < top(best)) best = items;
      importance.raise(above);
    }
  // The block is larger than it should be: how much larger says what the next plan must save.
  if (aims)
    for (double waste : wastes)
      if (waste > aim && capacity(waste) < top(best) && filled(waste)) return;
  for (double waste : wastes_if_must_be)
    if (!(aims && waste < aim) && capacity(waste) < top(best) && filled(waste)) return;
  items = std::move(best);
}

// The few large items determine the size of the block: only they are searched for, and small items
// are put into the gaps between them.
void place(std::vector<Item>& items, int end, std::int64_t enough) {
  const std::vector<std::int64_t> load = loads(items, end);
  const auto least = static_cast<double>(*std::max_element(load.begin(), load.end()));
  std::vector<Item> placed;
  std::vector<std::size_t> small, of_placed;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (static_cast<double>(items[i].size) >= small_share * least)
      placed.push_back(items[i]), of_placed.push_back(i);
    else
      small.push_back(i);
  search(placed, end, enough);
  for (std::size_t k = 0; k < placed.size(); ++k) items[of_placed[k]].offset = placed[k].offset;
  std::stable_sort(small.begin(), small.end(),
                   [&](std::size_t a, std::size_t b) { return items[a].size > items[b].size; });
  Placed all(std::move(placed));
  for (std::size_t i : small) all.put_into_gap(items[i]);
}

}  // namespace

Bytes lay_out(std::span<Buffer> buffers, SpaceId space, Bytes enough) {
  std::vector<std::size_t> indices;
  std::vector<Item> items;
  int end = 0;
  for (std::size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].place.space == space && buffers[i].size.count > 0) {
      end = std::max(end, buffers[i].last.number() + 1);
      indices.push_back(i);
      items.push_back(
          {buffers[i].first.number(), buffers[i].last.number(), buffers[i].size.count, 0});
    }
  if (items.empty()) return {};
  place(items, end, enough.count);
  for (std::size_t i = 0; i < indices.size(); ++i)
    buffers[indices[i]].place.offset = {items[i].offset};
  return {top(items)};
}

LivePeak live_peak(std::span<const Buffer> buffers, int instructions) {
  std::vector<Bytes> change(static_cast<std::size_t>(instructions) + 2);
  for (const Buffer& buffer : buffers)
    if (buffer.in_arena()) {
      change[buffer.first.index()] += buffer.size;
      change[buffer.last.index() + 1] -= buffer.size;
    }
  LivePeak peak;
  Bytes live;
  for (int i = 0; i <= instructions; ++i) {
    live += change[static_cast<std::size_t>(i)];
    if (live > peak.bytes) peak = {live, InstructionId(i)};
  }
  return peak;
}

}  // namespace ebb::planning
