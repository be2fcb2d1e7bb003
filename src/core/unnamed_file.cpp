#include "core/unnamed_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "ebb/error.h"

namespace ebb {
namespace {

constexpr Bytes zeros_at_once = 4_MiB;

std::string text_of(int error) { return std::generic_category().message(error); }

// Whether the file system does not support the operation, as opposed to a failure.
bool unsupported(int error) {
  return error == EOPNOTSUPP || error == ENOSYS || error == EINVAL || error == EISDIR;
}

constexpr Bytes unknown{std::numeric_limits<std::int64_t>::max()};

// Memory that programs can still take without swapping.
Bytes available_memory() {
  std::ifstream facts("/proc/meminfo");
  std::string name;
  for (std::int64_t kibibytes = 0; facts >> name >> kibibytes;) {
    if (name == "MemAvailable:") return kibibytes * 1_KiB;
    facts.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return unknown;
}

Bytes free_space(int descriptor) {
  struct statvfs facts {};
  if (fstatvfs(descriptor, &facts) != 0 || facts.f_blocks == 0) return unknown;
  return {static_cast<std::int64_t>(facts.f_bavail * facts.f_frsize)};
}

// The alignment that O_DIRECT requires of offsets, sizes and addresses; 0 if the kernel does not
// report it.
Bytes direct_alignment(int descriptor) {
#ifdef STATX_DIOALIGN
  struct statx facts {};
  if (statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &facts) == 0 &&
      (facts.stx_mask & STATX_DIOALIGN) != 0)
    return {std::max(facts.stx_dio_mem_align, facts.stx_dio_offset_align)};
#else
  static_cast<void>(descriptor);
#endif
  return 0_B;
}

// File systems may accept O_DIRECT when a file is opened, and refuse it when it is read.
bool reads_directly(int descriptor, Bytes alignment) {
  struct Free {
    std::align_val_t alignment;
    void operator()(void* memory) const { ::operator delete(memory, alignment); }
  };
  const auto count = static_cast<std::size_t>(alignment.count);
  const std::align_val_t aligned{count};
  const std::unique_ptr<void, Free> block(::operator new(count, aligned), Free{aligned});
  return pread(descriptor, block.get(), count, 0) >= 0;
}

}  // namespace

UnnamedFile::Descriptor::~Descriptor() {
  if (number >= 0) close(number);
}

UnnamedFile::UnnamedFile(const std::filesystem::path& folder, Bytes size, Cache cache, Reserve how)
    : folder_(folder), size_(size) {
  if (size < 0_B)
    throw ValueError(fmt::format("an offload file of {} B: expected 0 or more", size.count));
  open();
  struct statfs facts {};
  if (fstatfs(descriptor(), &facts) == 0)
    in_memory_ = facts.f_type == TMPFS_MAGIC || facts.f_type == RAMFS_MAGIC;
  alignment_ = std::max(alignment_, direct_alignment(descriptor()));
  size_ = round_up(size, alignment_);
  reserve(how);
  if (cache == Cache::bypass_if_possible) bypass_cache();
  // Reading ahead would fill the page cache with bytes that are never dropped.
  if (!direct_) posix_fadvise(descriptor(), 0, 0, POSIX_FADV_RANDOM);
}

UnnamedFile::~UnnamedFile() = default;

void UnnamedFile::open() {
  descriptor_.number = ::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor() < 0 && unsupported(errno)) {
    std::string name = (folder_ / "ebb_offload_XXXXXX").string();
    descriptor_.number = mkostemp(name.data(), O_CLOEXEC);
    if (descriptor() >= 0 && unlink(name.c_str()) != 0)
      throw FileError(fmt::format("cannot remove {}: {}", name, text_of(errno)));
  }
  if (descriptor() < 0)
    throw FileError(fmt::format("cannot make a file for offloaded bytes in the folder {}: {}",
                                folder_.string(), text_of(errno)));
}

void UnnamedFile::reserve(Reserve how) {
  if (size_ == 0_B) return;
  const auto fail = [&](const std::string& why) {
    throw FileError(fmt::format("cannot reserve {} for offloaded bytes in the folder {}: {}",
                                to_string(size_), folder_.string(), why));
  };
  // Exceeding this limit would end the process by a signal.
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      static_cast<rlim_t>(size_.count) > limit.rlim_cur)
    fail(fmt::format("files of this process may have at most {} (ulimit -f)",
                     to_string(Bytes{static_cast<std::int64_t>(limit.rlim_cur)})));
  // Some file systems use up all their space before they report that it is not enough. ramfs has no
  // limit at all: it would take the memory of all other programs.
  const Bytes free = std::min(free_space(descriptor()), in_memory_ ? available_memory() : unknown);
  if (free < size_) fail(fmt::format("{}, {} are free", text_of(ENOSPC), to_string(free)));
  if (how == Reserve::fallocate_if_possible) {
    int error = 0;
    do error = fallocate(descriptor(), 0, 0, size_.count) == 0 ? 0 : errno;
    while (error == EINTR);
    if (error == 0) return;
    if (!unsupported(error)) fail(text_of(error));
  }
  write_zeros();
}

void UnnamedFile::write_zeros() {
  const std::vector<std::byte> zeros(static_cast<std::size_t>(zeros_at_once.count));
  for (Bytes at; at < size_;) {
    const Bytes part = std::min(zeros_at_once, size_ - at);
    const ssize_t written =
        pwrite(descriptor(), zeros.data(), static_cast<std::size_t>(part.count), at.count);
    int error = written < 0 ? errno : 0;
    if (error == EINTR) continue;
    if (error == 0) error = flush_written(at, {written});
    if (error != 0 || written == 0)
      throw FileError(fmt::format(
          "cannot write {} of zeros to reserve space for offloaded bytes in the folder {}: {} "
          "after {}",
          to_string(size_), folder_.string(), text_of(error != 0 ? error : EIO), to_string(at)));
    drop_cached(at, {written});
    at += {written};
  }
}

void UnnamedFile::bypass_cache() {
  if (in_memory_) return;
  const int flags = fcntl(descriptor(), F_GETFL);
  if (flags < 0 || fcntl(descriptor(), F_SETFL, flags | O_DIRECT) != 0) return;
  direct_ = reads_directly(descriptor(), alignment_);
  if (!direct_) fcntl(descriptor(), F_SETFL, flags);
}

int UnnamedFile::flush_written(Bytes offset, Bytes size) const {
  if (direct_ || in_memory_) return 0;
  constexpr unsigned write_and_wait =
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  if (sync_file_range(descriptor(), offset.count, size.count, write_and_wait) == 0) return 0;
  // Then the system decides when to write.
  return unsupported(errno) || errno == ESPIPE ? 0 : errno;
}

void UnnamedFile::drop_cached(Bytes offset, Bytes size) const {
  if (direct_ || in_memory_) return;
  posix_fadvise(descriptor(), offset.count, size.count, POSIX_FADV_DONTNEED);
}

Bytes allocated_bytes(int descriptor) {
  constexpr std::size_t at_once = 64;  // extents
  alignas(fiemap) std::array<std::byte, sizeof(fiemap) + at_once * sizeof(fiemap_extent)> memory;
  Bytes total;
  for (std::uint64_t from = 0;;) {
    memory.fill(std::byte{0});
    auto* const map = new (memory.data()) fiemap;
    map->fm_start = from, map->fm_length = FIEMAP_MAX_OFFSET - from, map->fm_extent_count = at_once;
    if (ioctl(descriptor, FS_IOC_FIEMAP, map) != 0) break;
    for (std::uint32_t e = 0; e < map->fm_mapped_extents; ++e) {
      const fiemap_extent& extent = map->fm_extents[e];
      total += Bytes{static_cast<std::int64_t>(extent.fe_length)};
      from = extent.fe_logical + extent.fe_length;
      if ((extent.fe_flags & FIEMAP_EXTENT_LAST) != 0) return total;
    }
    if (map->fm_mapped_extents == 0) return total;
  }
  struct stat facts {};
  if (fstat(descriptor, &facts) != 0) return {};
  return {static_cast<std::int64_t>(facts.st_blocks) * 512};
}

}  // namespace ebb
