#include "ebb/storage.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <vector>

#include "core/cuda/cuda.h"
#include "ebb/error.h"

namespace ebb {
namespace {

std::atomic<std::int64_t> reserved_bytes{0};

constexpr int usable = PROT_READ | PROT_WRITE;

std::size_t count(Bytes bytes) { return static_cast<std::size_t>(bytes.count); }

Bytes size_of(PageSize pages) {
  static const Bytes standard{sysconf(_SC_PAGESIZE)};
  return pages == PageSize::huge ? huge_page : standard;
}

// Address space that begins at a page boundary; null if there is none.
std::byte* map_addresses(Bytes span, Bytes page, int protection) {
  // The kernel aligns to standard pages, so reserves one large page more, which contains an aligned
  // start, and releases the rest.
  const Bytes slack = page - size_of(PageSize::standard);
  void* mapped = mmap(nullptr, count(span + slack), protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  std::byte* begin = static_cast<std::byte*>(mapped);
  const Bytes address{static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(begin))};
  const Bytes before = round_up(address, page) - address;
  if (before > 0_B) munmap(begin, count(before));
  if (slack > before) munmap(begin + (before + span).count, count(slack - before));
  return begin + before.count;
}

}  // namespace

Storage::Storage(Device device, Bytes limit, PageSize pages, Memory memory)
    : device_(device), pages_(pages), limit_(limit) {
  const Bytes span = reservation(device, limit, pages);
  if (device.kind == Device::Kind::cuda) {
    if (memory == Memory::on_resize)
      throw DeviceError(fmt::format("memory on {} cannot grow in place", to_string(device)));
    data_ = cuda::allocate(device, limit);
  } else {
    const int protection = memory == Memory::at_once ? usable : PROT_NONE;
    data_ = map_addresses(span, size_of(pages), protection);
    if (!data_)
      throw MemoryError(fmt::format("cannot allocate {} on {}: {}", to_string(limit),
                                    to_string(device), std::strerror(errno)));
  }
  if (memory == Memory::at_once) {
    size_ = limit;
    set_reserved(span);
  }
}

Bytes Storage::reservation(Bytes size, PageSize pages) {
  return round_up(std::max(size, 1_B), size_of(pages));
}

Bytes Storage::reservation(Device device, Bytes size, PageSize pages) {
  return device.kind == Device::Kind::cuda ? cuda::reservation(size) : reservation(size, pages);
}

std::shared_ptr<Storage> Storage::allocate(Device device, Bytes size, PageSize pages) {
  return std::shared_ptr<Storage>(new Storage(device, size, pages, Memory::at_once));
}

std::shared_ptr<Storage> Storage::growable(Device device, Bytes limit) {
  return std::shared_ptr<Storage>(
      new Storage(device, limit, PageSize::standard, Memory::on_resize));
}

Storage::~Storage() {
  if (device_.kind == Device::Kind::cuda)
    cuda::release(device_, data_);
  else
    munmap(data_, count(reservation(limit_, pages_)));
  reserved_bytes.fetch_sub(reserved_.count, std::memory_order_relaxed);
}

void Storage::write(std::span<const std::byte> bytes) {
  if (device_.kind == Device::Kind::cuda)
    cuda::write(device_, data_, bytes.data(), {static_cast<std::int64_t>(bytes.size())});
  else if (!bytes.empty())
    std::memcpy(data_, bytes.data(), bytes.size());
}

void Storage::read(std::span<std::byte> bytes) const {
  if (device_.kind == Device::Kind::cuda)
    cuda::read(device_, bytes.data(), data_, {static_cast<std::int64_t>(bytes.size())});
  else if (!bytes.empty())
    std::memcpy(bytes.data(), data_, bytes.size());
}

void Storage::resize(Bytes size) {
  if (device_.kind == Device::Kind::cuda)
    throw DeviceError(fmt::format("memory on {} cannot be resized", to_string(device_)));
  if (size < 0_B || size > limit_)
    throw MemoryError(fmt::format("cannot resize a storage to {}: it can have 0 B to {}",
                                  to_string(size), to_string(limit_)));
  const Bytes reserved = size > 0_B ? reservation(size, pages_) : 0_B;
  if (reserved > reserved_) {
    const Bytes more = reserved - reserved_;
    if (mprotect(data_ + reserved_.count, count(more), usable) != 0)
      throw MemoryError(fmt::format("cannot allocate {} more on {}: {}", to_string(more),
                                    to_string(device_), std::strerror(errno)));
  } else if (reserved < reserved_) {
    // Mapping again releases both the pages and the memory committed for them.
    const Bytes less = reserved_ - reserved;
    if (mmap(data_ + reserved.count, count(less), PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
      throw MemoryError(fmt::format("cannot give back {} on {}: {}", to_string(less),
                                    to_string(device_), std::strerror(errno)));
  }
  size_ = size;
  set_reserved(reserved);
}

void Storage::set_reserved(Bytes reserved) {
  if (pages_ == PageSize::huge && device_.kind == Device::Kind::cpu && reserved > reserved_) {
    // A refusal is no error: MachineReport tells whether huge pages were granted.
    madvise(data_ + reserved_.count, count(reserved - reserved_), MADV_HUGEPAGE);
    // The last huge page may be used in part. If standard pages replace it, touch them here, so
    // that all reserved bytes are resident once size() bytes have been written.
    std::memset(data_ + (reserved - huge_page).count, 0, count(huge_page));
  }
  reserved_bytes.fetch_add((reserved - reserved_).count, std::memory_order_relaxed);
  reserved_ = reserved;
}

void Storage::populate() {
  if (reserved_.count == 0 || device_.kind == Device::Kind::cuda) return;
#ifdef MADV_POPULATE_WRITE
  if (madvise(data_, static_cast<std::size_t>(reserved_.count), MADV_POPULATE_WRITE) == 0) return;
  if (errno != EINVAL)
    throw MemoryError(
        fmt::format("cannot provide {} of memory: {}", to_string(reserved_), std::strerror(errno)));
#endif
  // Kernels before 5.14 do not know the call: a write to every page does the same.
  const std::int64_t page = sysconf(_SC_PAGESIZE);
  for (std::int64_t at = 0; at < reserved_.count; at += page) {
    volatile std::byte* byte = data_ + at;
    *byte = *byte;
  }
}

Bytes Storage::resident() const {
  if (device_.kind == Device::Kind::cuda) return reserved_;
  // mincore reports single pages, while smaps merges neighbouring maps.
  const Bytes page = size_of(PageSize::standard);
  std::vector<unsigned char> in_memory(count(reserved_) / count(page));
  if (mincore(data_, count(reserved_), in_memory.data()) != 0)
    throw MemoryError(fmt::format("cannot ask which pages are resident: {}", std::strerror(errno)));
  std::int64_t pages = 0;
  for (unsigned char flags : in_memory) pages += flags & 1;
  return pages * page;
}

Bytes live_bytes() { return {reserved_bytes.load(std::memory_order_relaxed)}; }

}  // namespace ebb
