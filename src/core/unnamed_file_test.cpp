#include "core/unnamed_file.h"

#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "core/offload_file.h"
#include "ebb/error.h"
#include "ebb/storage.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

using Cache = UnnamedFile::Cache;
using Reserve = UnnamedFile::Reserve;

std::string error_of(const std::filesystem::path& folder, Bytes size) {
  try {
    const UnnamedFile file(folder, size);
  } catch (const FileError& error) {
    return error.what();
  }
  return {};
}

void expect_parts(const std::string& error, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(error.find(part), std::string::npos) << part << " is not in: " << error;
}

bool is_on_disk(const std::filesystem::path& folder) {
  struct statfs facts {};
  return statfs(folder.c_str(), &facts) == 0 &&
         (facts.f_type == EXT4_SUPER_MAGIC || facts.f_type == XFS_SUPER_MAGIC);
}

// Bytes of the file in the page cache.
Bytes cached(int descriptor, Bytes size) {
  const auto count = static_cast<std::size_t>(size.count);
  void* const mapped = mmap(nullptr, count, PROT_READ, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) throw std::runtime_error("cannot map the file");
  const Bytes page{sysconf(_SC_PAGESIZE)};
  std::vector<unsigned char> pages(count / static_cast<std::size_t>(page.count));
  const int failed = mincore(mapped, count, pages.data());
  munmap(mapped, count);
  if (failed != 0) throw std::runtime_error("cannot ask for the pages of the file");
  Bytes result;
  for (const unsigned char flags : pages) result += (flags & 1) * page;
  return result;
}

TEST(UnnamedFile, SpaceIsReservedInEitherWay) {
  const TemporaryFolder folder;
  for (const Reserve reserve : {Reserve::fallocate_if_possible, Reserve::zeros}) {
    const UnnamedFile file(folder.path(), 9_MiB, Cache::bypass_if_possible, reserve);
    struct stat facts {};
    ASSERT_EQ(fstat(file.descriptor(), &facts), 0);
    EXPECT_EQ(facts.st_size, (9_MiB).count);
    EXPECT_GE(facts.st_blocks * 512, (9_MiB).count);
    EXPECT_EQ(facts.st_nlink, 0u);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
}

TEST(UnnamedFile, ADiskBypassesTheCache) {
  const TemporaryFolder folder;
  if (!is_on_disk(folder.path())) GTEST_SKIP() << folder.path() << " is neither ext4 nor XFS";
  EXPECT_TRUE(UnnamedFile(folder.path(), 1_MiB).direct());
  EXPECT_FALSE(UnnamedFile(folder.path(), 1_MiB, Cache::use).direct());
}

// Kernels since 6.6 accept O_DIRECT there, though the page cache is all there is.
TEST(UnnamedFile, AFileInMemoryIsNotDirect) {
  const std::filesystem::path folder = "/dev/shm";
  struct statfs facts {};
  if (statfs(folder.c_str(), &facts) != 0 || facts.f_type != TMPFS_MAGIC)
    GTEST_SKIP() << folder << " is no tmpfs";
  OffloadFile file(folder, 1_MiB);
  EXPECT_FALSE(file.direct());
  EXPECT_EQ(file.method(), "threads");
  const auto written = Storage::allocate(device::cpu, 1_MiB);
  const auto read = Storage::allocate(device::cpu, 1_MiB);
  for (int i = 0; i < 1 << 20; ++i) written->data()[i] = static_cast<std::byte>(i % 251);
  file.wait(file.write({written->data(), 1 << 20}, 0_B));
  file.wait(file.read({read->data(), 1 << 20}, 0_B));
  EXPECT_TRUE(std::equal(written->data(), written->data() + (1 << 20), read->data()));
}

// Through the page cache: moved bytes do not stay there.
TEST(UnnamedFile, ThePageCacheDoesNotGrow) {
  const TemporaryFolder folder;
  if (!is_on_disk(folder.path())) GTEST_SKIP() << folder.path() << " is neither ext4 nor XFS";
  constexpr Bytes size = 64_MiB;
  OffloadFile file(folder.path(), size, 64, OffloadFile::Method::buffered_threads);
  const auto memory = Storage::allocate(device::cpu, size);
  const std::span<std::byte> all{memory->data(), static_cast<std::size_t>(size.count)};
  file.wait(file.write(all, 0_B));
  EXPECT_LT(cached(file.descriptor(), size), 4_MiB);
  file.wait(file.read(all, 0_B));
  EXPECT_LT(cached(file.descriptor(), size), 4_MiB);
  // Without the class the bytes stay in the cache, so the measurement works.
  ASSERT_EQ(pread(file.descriptor(), all.data(), 8 << 20, 0), 8 << 20);
  EXPECT_GE(cached(file.descriptor(), size), 8_MiB);
}

TEST(UnnamedFile, AMissingFolderIsNamed) {
  const TemporaryFolder folder;
  expect_parts(error_of(folder / "absent", 1_MiB),
               {(folder / "absent").string(), "No such file or directory"});
  expect_parts(error_of(folder.write("file", "text"), 1_MiB),
               {(folder / "file").string(), "Not a directory"});
}

TEST(UnnamedFile, AFolderThatCannotBeWrittenIsNamed) {
  // Not even the superuser makes files there.
  expect_parts(error_of("/proc/self", 1_MiB), {"/proc/self", "cannot make a file"});
}

TEST(UnnamedFile, AFullDiskIsNamedBeforeItIsFilled) {
  const TemporaryFolder folder;
  expect_parts(error_of(folder.path(), Bytes{std::int64_t{1} << 52}),
               {folder.path().string(), "cannot reserve", "No space left on device", "are free"});
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// An error instead of the signal SIGXFSZ, which would end the process.
TEST(UnnamedFile, ALimitOnFilesIsNamed) {
  const TemporaryFolder folder;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 1 << 20;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  const std::string error = error_of(folder.path(), 2_MiB);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  expect_parts(error, {folder.path().string(), "2048.00 KiB", "at most 1024.00 KiB"});
}

TEST(UnnamedFile, ANegativeSizeIsRefused) {
  const TemporaryFolder folder;
  EXPECT_THROW(UnnamedFile(folder.path(), {-1}), ValueError);
  EXPECT_THROW(OffloadFile(folder.path(), 1_MiB, 0), ValueError);
}

}  // namespace
}  // namespace ebb::test
