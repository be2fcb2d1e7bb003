#include "ebb/movable_arena.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ebb/storage.h"
#include "support/arena_model.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

using Block = MovableArena::Block;
using Options = MovableArena::Options;
using Statistics = MovableArena::Statistics;

const Bytes page = Storage::reservation(1_B);

// --- Handles

TEST(MovableArena, AnEmptyHandleHasNothing) {
  MovableArena arena(device::cpu, {});
  Block block = arena.allocate(100_B);
  const Block taken = std::move(block);
  const Block made;
  for (const Block* empty : {&made, const_cast<const Block*>(&block)}) {
    EXPECT_FALSE(*empty);
    EXPECT_EQ(empty->data(), nullptr);
    EXPECT_EQ(empty->size(), 0_B);
    expect_error([&] { empty->pin(); }, {"[pin]", "empty"});
    expect_error([&] { empty->narrow(0_B, 1_B); }, {"[narrow]", "0 B"});
  }
  EXPECT_TRUE(taken);
  EXPECT_EQ(taken.size(), 100_B);
  EXPECT_EQ(arena.statistics().blocks, 1);
}

TEST(MovableArena, BlocksOfNoBytesHaveAnAddress) {
  MovableArena arena(device::cpu, {});
  const Block a = arena.allocate(0_B), b = arena.allocate(0_B);
  EXPECT_EQ(a.size(), 0_B);
  EXPECT_NE(a.data(), b.data());
}

TEST(MovableArena, PartsOfPartsKeepTheBlockAndMoveWithIt) {
  MovableArena arena(device::cpu, {});
  Block before = arena.allocate(1_KiB), block = arena.allocate(1_KiB);
  fill(5, block.data(), 1_KiB);
  const Block part = block.narrow(100_B, 500_B).narrow(10_B, 20_B);
  const std::byte* const was = part.data();
  block = {};
  before = {};
  EXPECT_EQ(arena.statistics().blocks, 1);
  EXPECT_EQ(arena.defragment(), 1_KiB);
  EXPECT_EQ(part.data(), was - 1024);
  EXPECT_EQ(part.size(), 20_B);
  EXPECT_TRUE(holds(5, part.data(), 110_B, 20_B));
}

TEST(MovableArena, PartsMustLieInside) {
  MovableArena arena(device::cpu, {});
  const Block block = arena.allocate(100_B);
  const Block part = block.narrow(20_B, 30_B);
  EXPECT_EQ(part.narrow(30_B, 0_B).size(), 0_B);
  const std::pair<Bytes, Bytes> outside[] = {{0_B, 31_B}, {31_B, 0_B}, {30_B, 1_B},
                                             {{-1}, 5_B}, {0_B, {-1}}, {{1ll << 62}, {1ll << 62}}};
  for (const auto& [offset, size] : outside)
    expect_error([&, o = offset, s = size] { part.narrow(o, s); },
                 {"[narrow]", std::to_string(size.count) + " B", "block of 30 B"});
}

TEST(MovableArena, HandlesOutliveTheArena) {
  const Bytes live = live_bytes();
  {
    Block kept;
    std::optional<MovableArena::Pin> pin;
    {
      MovableArena arena(device::cpu, {.defragment_every = 1});
      Block block = arena.allocate(1_KiB);
      kept = arena.allocate(1_KiB);
      fill(1, block.data(), 1_KiB);
      fill(2, kept.data(), 1_KiB);
      pin = block.pin();
    }
    EXPECT_TRUE(holds(1, pin->data(), 0_B, 1_KiB));
    const std::byte* const was = kept.data();
    pin.reset();  // frees the block, and the gap is closed
    EXPECT_EQ(kept.data(), was - 1024);
    EXPECT_TRUE(holds(2, kept.data(), 0_B, 1_KiB));
    EXPECT_GT(live_bytes(), live);
  }
  EXPECT_EQ(live_bytes(), live);
}

// --- Pins

TEST(MovableArena, BlocksMoveUpToPinnedOnesAndBetweenThem) {
  MovableArena arena(device::cpu, {});
  std::vector<Block> blocks;
  for (int i = 0; i < 7; ++i) blocks.push_back(arena.allocate(64_B));
  const std::byte* const base = blocks[0].data();
  const auto offset = [&](int i) { return blocks[static_cast<std::size_t>(i)].data() - base; };
  auto pin = blocks[3].pin(), again = blocks[3].pin();
  blocks[0] = {}, blocks[2] = {}, blocks[4] = {};
  EXPECT_EQ(arena.defragment(), 3 * 64_B);
  EXPECT_EQ(offset(1), 0);
  EXPECT_EQ(offset(3), 3 * 64);
  EXPECT_EQ(offset(5), 4 * 64);
  EXPECT_EQ(offset(6), 5 * 64);
  again = std::move(pin);  // lets go of one of the two
  EXPECT_EQ(arena.defragment(), 0_B);
  { const auto last = std::move(again); }
  EXPECT_EQ(arena.defragment(), 3 * 64_B);
  EXPECT_EQ(offset(6), 3 * 64);
}

TEST(MovableArena, GrowingMovesNothing) {
  MovableArena arena(device::cpu, {.limit = 64_MiB});
  const Block block = arena.allocate(1_KiB);
  const auto pin = block.pin();
  fill(9, block.data(), 1_KiB);
  std::byte* const was = block.data();
  std::vector<Block> more;
  while (arena.statistics().capacity < 32_MiB) more.push_back(arena.allocate(100_KiB));
  EXPECT_EQ(block.data(), was);
  EXPECT_EQ(pin.data(), was);
  EXPECT_TRUE(holds(9, was, 0_B, 1_KiB));
}

// --- Room

TEST(MovableArena, DefragmentsRatherThanGrows) {
  MovableArena arena(device::cpu, {.initial = 64_KiB, .limit = 1_GiB});
  std::vector<Block> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(arena.allocate(4_KiB));
  for (std::size_t i = 0; i < 16; i += 2) blocks[i] = {};
  EXPECT_EQ(arena.statistics().largest_gap, 4_KiB);
  EXPECT_DOUBLE_EQ(arena.statistics().fragmentation(), 1.0 - 1.0 / 8.0);
  const Block large = arena.allocate(32_KiB);
  const Statistics statistics = arena.statistics();
  EXPECT_EQ(statistics.capacity, 64_KiB);
  EXPECT_EQ(statistics.free, 0_B);
  EXPECT_EQ(statistics.defragmentations, 1);
  EXPECT_EQ(statistics.moved, 32_KiB);
  EXPECT_EQ(statistics.high_water, 64_KiB);
  EXPECT_EQ(statistics.allocations, 17);
}

TEST(MovableArena, GrowsByItsFactorUpToTheLimit) {
  MovableArena arena(device::cpu, {.initial = 100_KiB, .limit = 300_KiB, .growth = 2.0});
  EXPECT_EQ(arena.statistics().capacity, 100_KiB);
  const Block a = arena.allocate(101_KiB);
  EXPECT_EQ(arena.statistics().capacity, 200_KiB);
  const Block b = arena.allocate(100_KiB);
  EXPECT_EQ(arena.statistics().capacity, 300_KiB);
}

TEST(MovableArena, TheLimitIsNotPassed) {
  const Bytes live = live_bytes();
  MovableArena arena(device::cpu, {.limit = 64_KiB + 100_B});  // whole pages: the 100 B are lost
  const Block low = arena.allocate(32_KiB), high = arena.allocate(8_KiB);
  expect_error([&] { arena.allocate(24_KiB + 1_B); },
               {"cannot allocate", "24.06 KiB", "24.00 KiB are free", "limit of 64.00 KiB",
                "largest gap has 24.00 KiB", "0 of 2 blocks are pinned"});
  expect_error([&] { arena.allocate({std::numeric_limits<std::int64_t>::max()}); }, {"PiB"});
  const Block rest = arena.allocate(24_KiB);
  EXPECT_EQ(live_bytes() - live, 64_KiB);
}

TEST(MovableArena, APinnedBlockCanStandInTheWay) {
  MovableArena arena(device::cpu, {.limit = 64_KiB});
  Block low = arena.allocate(32_KiB);
  const Block high = arena.allocate(8_KiB);
  std::optional pin = high.pin();
  low = {};
  expect_error([&] { arena.allocate(40_KiB); },
               {"40.00 KiB", "56.00 KiB are free", "largest gap has 32.00 KiB", "1 of 1 blocks"});
  pin.reset();
  EXPECT_TRUE(arena.allocate(40_KiB));
}

TEST(MovableArena, TrimGivesPagesBack) {
  const Bytes live = live_bytes();
  MovableArena arena(device::cpu, {.initial = 1_MiB});
  Block block = arena.allocate(page + 1_B);
  fill(3, block.data(), block.size());
  EXPECT_EQ(live_bytes() - live, 1_MiB);
  EXPECT_EQ(arena.trim(), 1_MiB - 2 * page);
  EXPECT_EQ(live_bytes() - live, 2 * page);
  EXPECT_TRUE(holds(3, block.data(), 0_B, block.size()));
  EXPECT_EQ(arena.trim(), 0_B);
  block = {};
  EXPECT_EQ(arena.trim(), 2 * page);
  EXPECT_EQ(live_bytes(), live);
  EXPECT_TRUE(arena.allocate(1_B));
}

TEST(MovableArena, DefragmentsWhenAsked) {
  const auto after_frees = [](Options options) {
    MovableArena arena(device::cpu, options);
    std::vector<Block> blocks;
    for (int i = 0; i < 100; ++i) blocks.push_back(arena.allocate(64_B));
    for (std::size_t i = 0; i < 40; ++i) blocks[i] = {};
    return arena.statistics().defragmentations;
  };
  EXPECT_EQ(after_frees({}), 0);
  EXPECT_EQ(after_frees({.defragment_every = 10}), 4);
  EXPECT_EQ(after_frees({.defragment_every = 41}), 0);
  EXPECT_EQ(after_frees({.defragment_above = 0.2}), 2);  // at 21 of 100 and at 16 of 79 blocks
  EXPECT_EQ(after_frees({.defragment_above = 0.0}), 40);
}

// Gaps that pins keep open do not count as waste; otherwise every free would try to defragment in
// vain.
TEST(MovableArena, DefragmentsInVainOnceOnly) {
  MovableArena arena(device::cpu, {.defragment_above = 0.25});
  std::vector<Block> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(arena.allocate(64_B));
  std::optional pin = blocks[99].pin();
  for (std::size_t i = 0; i < 50; ++i) blocks[i] = {};
  EXPECT_EQ(arena.statistics().defragmentations, 1);
  pin.reset();
  blocks[50] = {};
  EXPECT_EQ(arena.statistics().defragmentations, 2);
  EXPECT_EQ(arena.statistics().largest_gap, arena.statistics().free);
}

TEST(MovableArena, RefusesWrongOptions) {
  const auto expect = [](const Options& options, const std::string& name, const std::string& got) {
    expect_error([&] { MovableArena(device::cpu, options); }, {"[MovableArena]", name, got});
  };
  expect({.limit = 100_B}, "limit must be a page or more", "100 B");
  expect({.initial = {-1}}, "initial", "-1 B");
  expect({.initial = 2_MiB, .limit = 1_MiB}, "initial", "2048.00 KiB");
  expect({.growth = 0.5}, "growth", "0.5");
  expect({.defragment_every = 0}, "defragment_every", "0");
  expect({.defragment_above = 1.0}, "defragment_above", "1");
  expect_error([] { MovableArena(device::cuda(1), {}); }, {"cuda:1"});
  expect_error([] { MovableArena(device::cpu, {}).allocate({-5}); }, {"-5 B"});
}

}  // namespace
}  // namespace ebb::test
