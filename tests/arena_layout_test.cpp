// Layouts of buffers with any live ranges: no two buffers that are live at once overlap, and little
// memory is wasted.
#include "plan/arena_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace ebb::test {
namespace {

using namespace planning;

using Random = std::mt19937;

int below(Random& random, int end) {
  return static_cast<int>(random() % static_cast<unsigned>(end));  // the same on all machines
}

Buffer buffer(int first, int last, std::int64_t size) {
  Buffer made;
  made.first = InstructionId(first), made.last = InstructionId(last), made.size = Bytes{size};
  made.place.space = SpaceId(0);
  return made;
}

void expect_apart(const std::vector<Buffer>& buffers, Bytes size) {
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& a = buffers[i];
    ASSERT_GE(a.place.offset.count, 0);
    ASSERT_LE(a.place.offset + a.size, size);
    for (std::size_t k = i + 1; k < buffers.size(); ++k) {
      const Buffer& b = buffers[k];
      const bool together = a.first <= b.last && b.first <= a.last;
      ASSERT_TRUE(!together || a.place.offset + a.size <= b.place.offset ||
                  b.place.offset + b.size <= a.place.offset)
          << i << " and " << k;
    }
  }
}

// How much larger the block is than the most bytes live at once.
double waste_of(std::vector<Buffer> buffers) {
  const Bytes size = lay_out(buffers);
  expect_apart(buffers, size);
  int end = 0;
  for (const Buffer& each : buffers) end = std::max(end, each.last.number() + 1);
  const Bytes least = live_peak(buffers, end).bytes;
  return static_cast<double>(size.count) / static_cast<double>(least.count) - 1.0;
}

TEST(ArenaLayout, None) {
  EXPECT_EQ(lay_out({}), Bytes{});
  std::vector<Buffer> empty{buffer(0, 3, 0)};
  EXPECT_EQ(lay_out(empty), Bytes{});
}

TEST(ArenaLayout, RandomLives) {
  Random random(1);
  for (const int count : {1, 2, 7, 60, 400, 1500}) {
    std::vector<Buffer> buffers;
    for (int i = 0; i < count; ++i) {
      const int first = below(random, count);
      // Most buffers live briefly, some long; sizes span four orders of magnitude.
      const int length = below(random, 8) == 0 ? below(random, count) : below(random, 6);
      buffers.push_back(buffer(first, first + length, 64LL << below(random, 14)));
    }
    EXPECT_LE(waste_of(std::move(buffers)), 0.05) << count;
  }
}

// Forward keeps values that backward reads in reverse order, several times in a row.
TEST(ArenaLayout, ForwardAndBackward) {
  for (const int layers : {3, 40, 200}) {
    std::vector<Buffer> buffers;
    for (int micro_batch = 0; micro_batch < 4; ++micro_batch) {
      const int begin = micro_batch * 2 * layers;
      for (int i = 0; i < layers; ++i) {
        const int forward = begin + i, backward = begin + 2 * layers - 1 - i;
        buffers.push_back(buffer(forward, backward, 4096));
        buffers.push_back(buffer(forward, forward + 1, 3 * 4096));
        buffers.push_back(buffer(backward, backward + 1, 2 * 4096));
      }
    }
    EXPECT_LE(waste_of(std::move(buffers)), 0.01) << layers;
  }
}

// Cuts a block over time into pieces, so that a layout without waste exists. These cases are the
// hardest, because every instruction is full.
void cut(Random& random, int begin, int end, std::int64_t size, int depth,
         std::vector<Buffer>& pieces) {
  const bool in_time = below(random, 2) == 0;
  if (depth == 0 || (in_time ? end - begin < 2 : size < 128)) {
    pieces.push_back(buffer(begin, end - 1, size));
    return;
  }
  if (in_time) {
    const int middle = begin + 1 + below(random, end - begin - 1);
    cut(random, begin, middle, size, depth - 1, pieces);
    cut(random, middle, end, size, depth - 1, pieces);
  } else {
    const std::int64_t part = 64 * (1 + below(random, static_cast<int>(size / 64 - 1)));
    cut(random, begin, end, part, depth - 1, pieces);
    cut(random, begin, end, size - part, depth - 1, pieces);
  }
}

TEST(ArenaLayout, FullSteps) {
  Random random(2);
  for (const int depth : {3, 6, 9, 11}) {
    std::vector<Buffer> pieces;
    cut(random, 0, 3000, 64 << 20, depth, pieces);
    std::shuffle(pieces.begin(), pieces.end(), random);
    const std::size_t count = pieces.size();
    EXPECT_LE(waste_of(std::move(pieces)), 0.25) << count << " pieces";
  }
}

}  // namespace
}  // namespace ebb::test
