#include "ebb/storage.h"

#include <fmt/format.h>
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

}  // namespace

Storage::Storage(Device device, Bytes size)
    : device_(device), size_(size), reserved_(reservation(size, device)) {
  if (device.kind == Device::Kind::cuda) {
    data_ = cuda::allocate(device, size);
  } else {
    void* address = mmap(nullptr, static_cast<std::size_t>(reserved_.count), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED)
      throw MemoryError(fmt::format("cannot allocate {} on {}: {}", to_string(size),
                                    to_string(device), std::strerror(errno)));
    data_ = static_cast<std::byte*>(address);
  }
  reserved_bytes.fetch_add(reserved_.count, std::memory_order_relaxed);
}

Bytes Storage::reservation(Bytes size, Device device) {
  if (device.kind == Device::Kind::cuda) return cuda::reservation(size);
  return round_up(std::max(size, 1_B), {sysconf(_SC_PAGESIZE)});
}

std::shared_ptr<Storage> Storage::allocate(Device device, Bytes size) {
  return std::shared_ptr<Storage>(new Storage(device, size));
}

Storage::~Storage() {
  if (device_.kind == Device::Kind::cuda)
    cuda::release(device_, data_);
  else
    munmap(data_, static_cast<std::size_t>(reserved_.count));
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

Bytes Storage::resident() const {
  if (device_.kind == Device::Kind::cuda) return reserved_;
  // mincore tells page by page, without the merging of neighbouring maps that smaps does.
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> in_memory(static_cast<std::size_t>(reserved_.count) / page);
  if (mincore(data_, static_cast<std::size_t>(reserved_.count), in_memory.data()) != 0)
    throw MemoryError(fmt::format("cannot ask which pages are resident: {}", std::strerror(errno)));
  std::int64_t pages = 0;
  for (unsigned char flags : in_memory) pages += flags & 1;
  return {pages * static_cast<std::int64_t>(page)};
}

Bytes live_bytes() { return {reserved_bytes.load(std::memory_order_relaxed)}; }

}  // namespace ebb
