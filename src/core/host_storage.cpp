// Memory of the host, in pages that are mapped for each storage alone.
#include "core/host_storage.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "ebb/error.h"

namespace ebb {
namespace {

constexpr int usable = PROT_READ | PROT_WRITE;

std::size_t size_in_memory(Bytes bytes) { return static_cast<std::size_t>(bytes.count); }

Bytes size_of(PageSize pages) {
  static const Bytes standard{sysconf(_SC_PAGESIZE)};
  return pages == PageSize::huge ? huge_page : standard;
}

// Address space that begins at a page boundary; null if there is none.
std::byte* map_addresses(Bytes span, Bytes page, int protection) {
  // The kernel aligns to standard pages, so reserves one large page more, which contains an aligned
  // start, and releases the rest.
  const Bytes slack = page - size_of(PageSize::standard);
  void* mapped =
      mmap(nullptr, size_in_memory(span + slack), protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  std::byte* begin = static_cast<std::byte*>(mapped);
  const Bytes address{static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(begin))};
  const Bytes before = round_up(address, page) - address;
  if (before > 0_B) munmap(begin, size_in_memory(before));
  if (slack > before) munmap(begin + (before + span).count, size_in_memory(slack - before));
  return begin + before.count;
}

}  // namespace

Bytes host_reservation(Bytes size, PageSize pages) {
  return round_up(std::max(size, 1_B), size_of(pages));
}

HostStorage::HostStorage(Bytes limit, PageSize pages, Memory memory)
    : Storage(device::cpu, limit, pages) {
  const Bytes span = host_reservation(limit, pages);
  const int protection = memory == Memory::at_once ? usable : PROT_NONE;
  set_data(map_addresses(span, size_of(pages), protection));
  if (!data())
    throw MemoryError(fmt::format("cannot allocate {} on {}: {}", to_string(limit),
                                  to_string(device()), std::strerror(errno)));
  if (memory == Memory::at_once) provide(limit, span);
}

HostStorage::~HostStorage() { munmap(data(), size_in_memory(host_reservation(limit(), pages()))); }

void HostStorage::resize(Bytes size) {
  if (size < 0_B || size > limit())
    throw MemoryError(fmt::format("cannot resize a storage to {}: it can have 0 B to {}",
                                  to_string(size), to_string(limit())));
  const Bytes wanted = size > 0_B ? host_reservation(size, pages()) : 0_B;
  if (wanted > reserved()) {
    const Bytes more = wanted - reserved();
    if (mprotect(data() + reserved().count, size_in_memory(more), usable) != 0)
      throw MemoryError(fmt::format("cannot allocate {} more on {}: {}", to_string(more),
                                    to_string(device()), std::strerror(errno)));
  } else if (wanted < reserved()) {
    // Mapping again releases both the pages and the memory committed for them.
    const Bytes less = reserved() - wanted;
    if (mmap(data() + wanted.count, size_in_memory(less), PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
      throw MemoryError(fmt::format("cannot give back {} on {}: {}", to_string(less),
                                    to_string(device()), std::strerror(errno)));
  }
  provide(size, wanted);
}

void HostStorage::provide(Bytes size, Bytes pages_of_size) {
  if (pages() == PageSize::huge && pages_of_size > reserved()) {
    // A refusal is no error: MachineReport tells whether huge pages were granted.
    madvise(data() + reserved().count, size_in_memory(pages_of_size - reserved()), MADV_HUGEPAGE);
    // The last huge page may be used in part. If standard pages replace it, touch them here, so
    // that all reserved bytes are resident once size() bytes have been written.
    std::memset(data() + (pages_of_size - huge_page).count, 0, size_in_memory(huge_page));
  }
  set_size(size, pages_of_size);
}

void HostStorage::populate() {
  if (reserved().count == 0) return;
#ifdef MADV_POPULATE_WRITE
  if (madvise(data(), static_cast<std::size_t>(reserved().count), MADV_POPULATE_WRITE) == 0) return;
  if (errno != EINVAL)
    throw MemoryError(fmt::format("cannot provide {} of memory: {}", to_string(reserved()),
                                  std::strerror(errno)));
#endif
  // Kernels before 5.14 do not know the call: a write to every page does the same.
  const std::int64_t page = sysconf(_SC_PAGESIZE);
  for (std::int64_t at = 0; at < reserved().count; at += page) {
    volatile std::byte* byte = data() + at;
    *byte = *byte;
  }
}

Bytes HostStorage::resident() const {
  // mincore reports single pages, while smaps merges neighbouring maps.
  const Bytes page = size_of(PageSize::standard);
  std::vector<unsigned char> in_memory(size_in_memory(reserved()) / size_in_memory(page));
  if (mincore(data(), size_in_memory(reserved()), in_memory.data()) != 0)
    throw MemoryError(fmt::format("cannot ask which pages are resident: {}", std::strerror(errno)));
  std::int64_t pages = 0;
  for (unsigned char flags : in_memory) pages += flags & 1;
  return pages * page;
}

}  // namespace ebb
