// A reference for the arena of movable blocks, kept as simple as possible: a list that is searched
// from end to end, and contents that identify a block wherever it lies.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ebb/movable_arena.h"
#include "ebb/storage.h"

namespace ebb::test {

// The contents of a block: at every multiple of eight bytes, a word that depends on the block and
// the place. The span that `expected` returns is valid until its next call.

inline const std::byte* expected(std::uint64_t block, Bytes offset, Bytes size) {
  static std::vector<std::uint64_t> words;
  const std::int64_t first = offset.count / 8, last = (offset + size).count / 8;
  words.clear();
  for (std::int64_t i = first; i <= last; ++i)
    words.push_back((block << 32 | static_cast<std::uint64_t>(i)) * 0x9e3779b97f4a7c15u);
  return reinterpret_cast<const std::byte*>(words.data()) + offset.count % 8;
}

inline void fill(std::uint64_t block, std::byte* data, Bytes size) {
  std::memcpy(data, expected(block, 0_B, size), static_cast<std::size_t>(size.count));
}

inline bool holds(std::uint64_t block, const std::byte* data, Bytes offset, Bytes size) {
  return std::memcmp(data, expected(block, offset, size), static_cast<std::size_t>(size.count)) ==
         0;
}

class ArenaModel {
  using Options = MovableArena::Options;
  using Statistics = MovableArena::Statistics;

 public:
  explicit ArenaModel(const Options& options) : options_(options) {
    counts_.capacity = whole_pages(options.initial);
  }

  // The place where the arena must put the block, or -1 if it must refuse.
  Bytes allocate(std::uint64_t id, Bytes asked) {
    const Bytes size = round_up(std::max(asked, 1_B), buffer_alignment);
    std::size_t at = best_gap(size);
    const auto must_grow = [&] { return at > blocks_.size(); };
    if (must_grow() && size > *options_.limit - counts_.live) return {-1};
    if (must_grow() && (size <= free() || size > *options_.limit - end())) {
      defragment();
      at = best_gap(size);
    }
    if (must_grow()) {
      if (size > *options_.limit - end()) return {-1};
      const Bytes grown{
          static_cast<std::int64_t>(options_.growth * static_cast<double>(counts_.capacity.count))};
      counts_.capacity = std::min(*options_.limit, whole_pages(std::max(end() + size, grown)));
      at = blocks_.size();
    }
    const Bytes offset = at == 0 ? 0_B : blocks_[at - 1].end();
    blocks_.insert(blocks_.begin() + static_cast<std::ptrdiff_t>(at), {id, offset, size, 0});
    counts_.live += size;
    counts_.high_water = std::max(counts_.high_water, counts_.live);
    ++counts_.allocations;
    return offset;
  }

  void free(std::uint64_t id) {
    counts_.live -= find(id).size;
    std::erase_if(blocks_, [&](const Entry& entry) { return entry.id == id; });
    ++frees_;
    const double wasted = static_cast<double>((end() - counts_.live - stuck_).count);
    if ((options_.defragment_every && frees_ >= *options_.defragment_every) ||
        (options_.defragment_above && wasted > 0.0 &&
         wasted > *options_.defragment_above * static_cast<double>(end().count)))
      defragment();
  }

  void pin(std::uint64_t id) { ++find(id).pins; }
  void unpin(std::uint64_t id) {
    if (--find(id).pins == 0) stuck_ = 0_B;
  }

  Bytes defragment() {
    Bytes moved, at;
    for (Entry& entry : blocks_) {
      if (entry.pins == 0 && entry.offset > at) entry.offset = at, moved += entry.size;
      at = entry.end();
    }
    frees_ = 0;
    stuck_ = end() - counts_.live;
    ++counts_.defragmentations;
    counts_.moved += moved;
    return moved;
  }

  Bytes trim() {
    const Bytes before = counts_.capacity;
    counts_.capacity = whole_pages(end());
    return before - counts_.capacity;
  }

  Bytes offset(std::uint64_t id) { return find(id).offset; }

  Statistics statistics() const {
    Statistics result = counts_;
    result.blocks = static_cast<std::int64_t>(blocks_.size());
    result.free = free();
    for (std::size_t i = 0; i <= blocks_.size(); ++i)
      result.largest_gap = std::max(result.largest_gap, gap(i));
    return result;
  }

  // No two blocks overlap, and the gaps are what is free.
  void check() const {
    Bytes gaps;
    for (std::size_t i = 0; i <= blocks_.size(); ++i) {
      ASSERT_GE(gap(i), 0_B);
      gaps += gap(i);
    }
    ASSERT_EQ(gaps, free());
  }

 private:
  struct Entry {
    std::uint64_t id;
    Bytes offset, size;
    int pins;
    Bytes end() const { return offset + size; }
  };

  static Bytes whole_pages(Bytes size) { return round_up(size, Storage::reservation(1_B)); }
  Entry& find(std::uint64_t id) {
    return *std::find_if(blocks_.begin(), blocks_.end(),
                         [&](const Entry& entry) { return entry.id == id; });
  }
  Bytes end() const { return blocks_.empty() ? 0_B : blocks_.back().end(); }
  Bytes free() const { return counts_.capacity - counts_.live; }
  // Before block i, or after all of them.
  Bytes gap(std::size_t i) const {
    return (i < blocks_.size() ? blocks_[i].offset : counts_.capacity) -
           (i > 0 ? blocks_[i - 1].end() : 0_B);
  }
  std::size_t best_gap(Bytes size) const {
    std::size_t best = blocks_.size() + 1;  // none
    for (std::size_t i = 0; i <= blocks_.size(); ++i)
      if (gap(i) >= size && (best > blocks_.size() || gap(i) < gap(best))) best = i;
    return best;
  }

  Options options_;
  std::vector<Entry> blocks_;  // in the order of their addresses
  Statistics counts_;
  std::int64_t frees_ = 0;
  Bytes stuck_;
};

}  // namespace ebb::test
