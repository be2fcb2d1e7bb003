#include "runtime/file_copies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "core/host_storage.h"

namespace ebb {
namespace {

// A small copy from one file ends before a large one from another that was started earlier; who
// waits for it relies on both, as on everything before it in its lane.
TEST(FileCopies, ALaneKeepsItsOrder) {
  constexpr Bytes large = 96_MiB, small = 4_KiB;
  const std::filesystem::path folder = std::filesystem::temp_directory_path();
  OffloadFile of_large(folder, large), of_small(folder, small);
  HostStorage memory(large + small, PageSize::standard, HostStorage::Memory::at_once);
  const auto all = std::span(memory.data(), static_cast<std::size_t>((large + small).count));
  const auto first = all.first(static_cast<std::size_t>(large.count)),
             second = all.last(static_cast<std::size_t>(small.count));
  std::ranges::fill(all, std::byte{7});
  of_large.wait(of_large.write(first, {})), of_small.wait(of_small.write(second, {}));
  const std::array<FileTransfer, 2> step{FileTransfer{&of_large, {}, first, true},
                                         FileTransfer{&of_small, {}, second, true}};
  FileCopies copies;
  for (int run = 0; run < 3; ++run) {
    std::ranges::fill(all, std::byte{0});
    copies.begin(step);
    copies.wait(1);
    EXPECT_EQ(first.back(), std::byte{7});
    EXPECT_EQ(second.back(), std::byte{7});
    copies.wait_all();
  }
}

// A file, and copies of its pages to and from memory.
class FileCopiesOf : public testing::Test {
 protected:
  static constexpr Bytes page = 4_KiB;
  FileTransfer copy(int number, bool fetch, std::span<const InstructionId> waits = {}) {
    return {&file_, number * page, memory(number), fetch, waits};
  }
  std::span<std::byte> memory(int number) {
    return {memory_.data() + number * page.count, static_cast<std::size_t>(page.count)};
  }
  OffloadFile file_{std::filesystem::temp_directory_path(), 4 * page};
  HostStorage memory_{8 * page, PageSize::standard, HostStorage::Memory::at_once};
  FileCopies copies_;
};

// A copy runs before the computation comes to it, but not before what it waits for: here a store
// waits for instruction 0, a fetch of the same page for that store.
TEST_F(FileCopiesOf, StartWhenWhatTheyWaitForHasEnded) {
  const std::array<InstructionId, 1> computed{InstructionId(0)}, stored{InstructionId(1)};
  std::array<FileTransfer, 4> step{FileTransfer{}, copy(0, false, computed), copy(0, true, stored),
                                   copy(1, true)};
  step[2].memory = memory(2);
  for (int run = 0; run < 100; ++run) {
    copies_.begin(step);
    EXPECT_EQ(copies_.started(), 0u);  // the first fetch holds up those after it
    std::ranges::fill(memory(0), static_cast<std::byte>(run));
    copies_.reach(1);
    copies_.wait(1);
    std::ranges::fill(memory(0), std::byte{255});
    copies_.wait(3);
    EXPECT_EQ(memory(2).back(), static_cast<std::byte>(run));
    EXPECT_EQ(copies_.started(), 4u);
    copies_.wait_all();
  }
}

// Timed copies wait until the computation has come to them.
TEST_F(FileCopiesOf, StartWhenReached) {
  const std::array<FileTransfer, 3> step{copy(0, true), FileTransfer{}, copy(1, true)};
  copies_.begin(step, FileCopies::Start::when_reached);
  copies_.wait(0);
  EXPECT_EQ(copies_.started(), 1u);
  copies_.reach(2);
  copies_.wait(2);
  EXPECT_EQ(copies_.started(), 3u);
}

// After an error nothing else starts, and the end of the step does not wait for it.
TEST_F(FileCopiesOf, AnErrorEndsTheStep) {
  const std::array<InstructionId, 1> never{InstructionId(1)};
  std::array<FileTransfer, 3> step{copy(0, true), FileTransfer{}, copy(1, false, never)};
  step[0].offset = 64_KiB;  // outside
  for (int run = 0; run < 3; ++run) {
    copies_.begin(step);
    EXPECT_THROW(copies_.wait(2), ValueError);
    EXPECT_THROW(copies_.wait(0), ValueError);
    copies_.wait_all();
    EXPECT_EQ(copies_.started(), 1u);
  }
  copies_.begin({});
  copies_.wait(2);
  copies_.wait_all();
}

// Errors come out where the copy is waited for, and the next step is not affected.
TEST(FileCopies, ErrorsComeFromWaiting) {
  OffloadFile file(std::filesystem::temp_directory_path(), 8_KiB);
  HostStorage memory(8_KiB, PageSize::standard, HostStorage::Memory::at_once);
  const auto bytes = std::span(memory.data(), 4096);
  const std::array<FileTransfer, 2> outside{FileTransfer{&file, 64_KiB, bytes, false},
                                            FileTransfer{&file, {}, bytes, false}};
  FileCopies copies;
  copies.begin(outside);
  EXPECT_ANY_THROW(copies.wait(1));
  copies.wait_all();
  const std::array<FileTransfer, 1> inside{FileTransfer{&file, {}, bytes, false}};
  copies.begin(inside);
  EXPECT_NO_THROW(copies.wait(0));
}

}  // namespace
}  // namespace ebb
