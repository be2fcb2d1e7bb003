// Millions of random operations on an arena of movable blocks and on a simple model of it: both put
// every block at the same place and have the same counts, and every byte of every block stays as it
// was written.
#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "ebb/error.h"
#include "ebb/movable_arena.h"
#include "ebb/storage.h"
#include "support/arena_model.h"
#include "support/sanitizers.h"

namespace ebb::test {
namespace {

using Block = MovableArena::Block;
using Options = MovableArena::Options;
using Statistics = MovableArena::Statistics;

constexpr std::int64_t operations = sanitized ? 60'000 : 800'000;  // for each set of options

class RandomUse {
 public:
  RandomUse(const Options& options, std::uint64_t seed)
      : arena_(device::cpu, options), model_(options), random_(seed) {
    const Block block = arena_.allocate(1_B);  // the first block of an arena lies at its start
    base_ = block.data();
    model_.allocate(0, 1_B);
    model_.free(0);
  }

  void run(std::int64_t count) {
    for (std::int64_t i = 0; i < count && !testing::Test::HasFatalFailure(); ++i) {
      step();
      if (i % 512 == 0) check();
    }
    while (!held_.empty() && !testing::Test::HasFatalFailure())
      held_.back().pins.empty() ? drop_handles(held_.size() - 1) : unpin(held_.size() - 1);
    check();
    EXPECT_EQ(arena_.statistics().live, 0_B);
    EXPECT_EQ(arena_.statistics().fragmentation(), 0.0);
  }

  std::int64_t refused() const { return refused_; }
  Statistics statistics() const { return arena_.statistics(); }

 private:
  template <class Handle>
  struct Range {
    Handle handle;
    Bytes offset;  // in its block
  };
  struct Held {
    std::uint64_t id;
    std::vector<Range<Block>> handles;
    std::vector<Range<MovableArena::Pin>> pins;
  };

  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  Bytes up_to(Bytes limit) {
    return {static_cast<std::int64_t>(below(static_cast<std::uint64_t>(limit.count) + 1))};
  }

  void step() {
    const std::uint64_t choice = below(1000);
    if ((choice < 440 && held_.size() < 120) || held_.empty()) return allocate();
    const std::size_t i = below(held_.size());
    if (choice < 780) return drop_handles(i);
    if (choice < 860) return narrow(held_[i]);
    if (choice < 920) return read(held_[i]);
    if (choice < 930) return pin(held_[i]);
    if (choice < 990) return unpin(i);
    if (choice < 995) {
      ASSERT_EQ(arena_.defragment(), model_.defragment());
    } else {
      ASSERT_EQ(arena_.trim(), model_.trim());
    }
  }

  void allocate() {
    const Bytes size = up_to(below(8) == 0 ? 12_KiB : 600_B);
    const std::uint64_t id = next_id_++;
    const Bytes offset = model_.allocate(id, size);
    if (offset < 0_B) {
      ++refused_;
      ASSERT_THROW(arena_.allocate(size), MemoryError);
      return;
    }
    Block block = arena_.allocate(size);
    ASSERT_EQ(block.data() - base_, offset.count);
    ASSERT_EQ(block.size(), size);
    fill(id, block.data(), size);
    held_.push_back({id, {}, {}});
    held_.back().handles.push_back({std::move(block), 0_B});
  }

  void drop_handles(std::size_t i) {
    Held held = std::move(held_[i]);
    read(held);
    std::swap(held_[i], held_.back());
    held_.pop_back();
    const bool pinned = !held.pins.empty();
    held.handles.clear();
    if (pinned) {  // which keeps the block alive
      held_.push_back(std::move(held));
      return;
    }
    model_.free(held.id);
  }

  void narrow(Held& held) {
    if (held.handles.empty() || held.handles.size() > 4) return;
    const auto& [whole, start] = held.handles[below(held.handles.size())];
    const Bytes offset = up_to(whole.size()), size = up_to(whole.size() - offset);
    Range<Block> part{whole.narrow(offset, size), start + offset};
    if (below(2) == 0) held.handles.erase(held.handles.begin());  // the part keeps the block alive
    held.handles.push_back(std::move(part));
  }

  void read(const Held& held) {
    const auto check_all = [&](const auto& ranges) {
      for (const auto& [handle, offset] : ranges) {
        ASSERT_EQ(handle.data() - base_, (model_.offset(held.id) + offset).count);
        ASSERT_TRUE(holds(held.id, handle.data(), offset, handle.size()));
      }
    };
    check_all(held.handles);
    check_all(held.pins);
  }

  void pin(Held& held) {
    if (held.handles.empty()) return;
    const auto& [handle, offset] = held.handles.back();
    held.pins.push_back({handle.pin(), offset});
    model_.pin(held.id);
  }

  void unpin(std::size_t i) {
    Held& held = held_[i];
    if (held.pins.empty()) return;
    model_.unpin(held.id);
    held.pins.pop_back();
    if (held.pins.empty() && held.handles.empty()) drop_handles(i);
  }

  void check() {
    for (const Held& held : held_) read(held);
    ASSERT_NO_FATAL_FAILURE(model_.check());
    const Statistics is = arena_.statistics(), must = model_.statistics();
    ASSERT_EQ(is.capacity, must.capacity);
    ASSERT_EQ(is.live, must.live);
    ASSERT_EQ(is.free, must.free);
    ASSERT_EQ(is.largest_gap, must.largest_gap);
    ASSERT_EQ(is.high_water, must.high_water);
    ASSERT_EQ(is.blocks, must.blocks);
    ASSERT_EQ(is.allocations, must.allocations);
    ASSERT_EQ(is.defragmentations, must.defragmentations);
    ASSERT_EQ(is.moved, must.moved);
    ASSERT_EQ(is.fragmentation(), must.fragmentation());
  }

  MovableArena arena_;
  ArenaModel model_;
  std::mt19937_64 random_;
  const std::byte* base_ = nullptr;
  std::vector<Held> held_;
  std::uint64_t next_id_ = 1;
  std::int64_t refused_ = 0;
};

TEST(MovableArenaRandom, AgreesWithTheModel) {
  const Bytes live = live_bytes();
  const Options all[] = {
      {.initial = 64_KiB, .limit = 1_GiB},
      {.limit = 1_GiB, .growth = 1.0, .defragment_every = 200},
      {.limit = 1_GiB, .defragment_above = 0.3},
      {.limit = 96_KiB, .growth = 2.0, .defragment_every = 5000, .defragment_above = 0.9}};
  for (const Options& options : all) {
    SCOPED_TRACE(to_string(*options.limit));
    RandomUse use(options, 17);
    use.run(operations);
    EXPECT_GT(use.statistics().moved, 0_B);
    EXPECT_EQ(use.refused() > 0, *options.limit == 96_KiB);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(live_bytes(), live);
}

}  // namespace
}  // namespace ebb::test
