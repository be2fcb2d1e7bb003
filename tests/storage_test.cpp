// Memory from the operating system: how much is reserved, resident and returned.
#include "ebb/storage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "support/op_check.h"

namespace ebb::test {
namespace {

const Bytes page = Storage::reservation(1_B);

void write(const Storage& storage, int value) {
  std::memset(storage.data(), value, static_cast<std::size_t>(storage.size().count));
}

bool all_are(const Storage& storage, Bytes from, int value) {
  return std::all_of(storage.data() + from.count, storage.data() + storage.size().count,
                     [&](std::byte byte) { return byte == std::byte(value); });
}

TEST(Storage, TakesWholePages) {
  const Bytes live = live_bytes();
  {
    const auto storage = Storage::allocate(device::cpu, 10 * page + 1_B);
    EXPECT_EQ(storage->size(), 10 * page + 1_B);
    EXPECT_EQ(storage->reserved(), 11 * page);
    EXPECT_EQ(live_bytes() - live, 11 * page);
    EXPECT_EQ(storage->resident(), 0_B);
    EXPECT_TRUE(all_are(*storage, 0_B, 0));
    write(*storage, 7);
    EXPECT_EQ(storage->resident(), 11 * page);
  }
  EXPECT_EQ(live_bytes(), live);
  EXPECT_EQ(Storage::allocate(device::cpu, 0_B)->reserved(), page);
}

TEST(Storage, GrowsAndShrinksInPlace) {
  const Bytes live = live_bytes();
  {
    const auto storage = Storage::growable(device::cpu, 100 * page);
    std::byte* const address = storage->data();
    EXPECT_EQ(storage->size(), 0_B);
    EXPECT_EQ(storage->reserved(), 0_B);
    EXPECT_EQ(storage->resident(), 0_B);
    EXPECT_EQ(live_bytes(), live);

    storage->resize(2 * page + 5_B);
    EXPECT_EQ(storage->reserved(), 3 * page);
    write(*storage, 1);
    storage->resize(100 * page);
    EXPECT_EQ(live_bytes() - live, 100 * page);
    EXPECT_EQ(storage->resident(), 3 * page);
    EXPECT_TRUE(all_are(*storage, 3 * page, 0));
    write(*storage, 2);
    EXPECT_EQ(storage->resident(), 100 * page);

    storage->resize(40 * page);
    EXPECT_EQ(live_bytes() - live, 40 * page);
    EXPECT_EQ(storage->resident(), 40 * page);
    storage->resize(50 * page);  // what comes again is zero
    EXPECT_EQ(storage->resident(), 40 * page);
    EXPECT_TRUE(all_are(*storage, 40 * page, 0));
    storage->resize(40 * page);
    EXPECT_TRUE(all_are(*storage, 0_B, 2));

    storage->resize(0_B);
    EXPECT_EQ(live_bytes(), live);
    EXPECT_EQ(storage->data(), address);
  }
  EXPECT_EQ(live_bytes(), live);
}

TEST(Storage, KeepsToItsLimit) {
  const auto storage = Storage::growable(device::cpu, 10 * page);
  storage->resize(page);
  expect_error([&] { storage->resize(10 * page + 1_B); }, {"cannot resize", "40.00 KiB"});
  expect_error([&] { storage->resize({-1}); }, {"cannot resize", "-1 B"});
  EXPECT_EQ(storage->size(), page);
  expect_error([] { Storage::growable(device::cpu, {1ll << 60}); }, {"cannot allocate", "PiB"});
}

TEST(Storage, HugePagesAreWholeAlignedAndCounted) {
  const Bytes live = live_bytes();
  EXPECT_EQ(Storage::reservation(1_B, PageSize::huge), 2_MiB);
  EXPECT_EQ(Storage::reservation(2_MiB, PageSize::huge), 2_MiB);
  EXPECT_EQ(Storage::reservation(2_MiB + 1_B, PageSize::huge), 4_MiB);
  for (const Bytes size : {1_B, 3_MiB, 8_MiB}) {
    const auto storage = Storage::allocate(device::cpu, size, PageSize::huge);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(storage->data()) % huge_page.count, 0u);
    EXPECT_EQ(storage->size(), size);
    EXPECT_EQ(storage->reserved(), Storage::reservation(size, PageSize::huge));
    EXPECT_EQ(live_bytes() - live, storage->reserved());
    EXPECT_TRUE(all_are(*storage, 0_B, 0));
    EXPECT_LE(storage->resident(), storage->reserved());
    write(*storage, 3);
    EXPECT_EQ(storage->resident(), storage->reserved());
  }
  EXPECT_EQ(live_bytes(), live);
}

}  // namespace
}  // namespace ebb::test
