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
    copies.start(0), copies.start(1);
    copies.wait(1);
    EXPECT_EQ(first.back(), std::byte{7});
    EXPECT_EQ(second.back(), std::byte{7});
    copies.wait_all();
  }
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
  copies.start(0), copies.start(1);
  EXPECT_ANY_THROW(copies.wait(1));
  copies.wait_all();
  const std::array<FileTransfer, 1> inside{FileTransfer{&file, {}, bytes, false}};
  copies.begin(inside);
  copies.start(0);
  EXPECT_NO_THROW(copies.wait(0));
}

}  // namespace
}  // namespace ebb
