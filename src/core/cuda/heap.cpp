#include "core/cuda/heap.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/cuda/library.h"
#include "ebb/error.h"

namespace ebb::cuda {
namespace {

struct Driver {
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemCreate) create;
  decltype(&cuMemMap) map;
  decltype(&cuMemSetAccess) set_access;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemRelease) release;

  Driver() {
    const Library library("the CUDA driver", {"libcuda.so.1"});
    library.find("cuMemAddressReserve", reserve);
    library.find("cuMemCreate", create);
    library.find("cuMemMap", map);
    library.find("cuMemSetAccess", set_access);
    library.find("cuMemUnmap", unmap);
    library.find("cuMemRelease", release);
  }
};

const Driver& driver() {
  static const Driver functions;
  return functions;
}

CUmemLocation location(Device device) {
  CUmemLocation result = {};
  result.type = CU_MEM_LOCATION_TYPE_DEVICE;
  result.id = device.index;
  return result;
}

constexpr std::size_t page_size = static_cast<std::size_t>(Heap::page.count);

}  // namespace

Heap::Heap(Device device) : device_(device) {
  const Bytes all = round_up(properties(device).memory, page);
  const CUresult result =
      driver().reserve(&base_, static_cast<std::size_t>(all.count), page_size, 0, 0);
  if (result != CUDA_SUCCESS)
    throw DeviceError(
        fmt::format("[cuda] cuMemAddressReserve: error {}", static_cast<int>(result)));
  handles_.resize(static_cast<std::size_t>(all.count / page.count));
  free_[0] = all.count;
}

std::byte* Heap::allocate(Bytes size) {
  const std::lock_guard lock(mutex_);
  const Place need = round_up(std::max(size, 1_B), unit).count;
  // First fit: long-lived allocations collect at low addresses.
  const auto found = std::find_if(free_.begin(), free_.end(), [&](const auto& range) {
    return range.second - range.first >= need;
  });
  if (found == free_.end()) return nullptr;
  const Place begin = found->first, end = begin + need, rest = found->second;
  if (!map(begin, end)) {
    unmap(begin, rest);
    return nullptr;
  }
  free_.erase(found);
  if (end < rest) free_[end] = rest;
  used_[begin] = end;
  return reinterpret_cast<std::byte*>(base_) + begin;
}

bool Heap::release(std::byte* data) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(data - reinterpret_cast<std::byte*>(base_));
  if (found == used_.end()) return false;
  const auto [begin, end] = *found;
  used_.erase(found);
  add_free(begin, end);
  return true;
}

void Heap::add_free(Place begin, Place end) noexcept {
  const auto after = free_.lower_bound(begin);
  if (after != free_.end() && after->first == end) {
    end = after->second;
    free_.erase(after);
  }
  const auto next = free_.lower_bound(begin);
  if (next != free_.begin() && std::prev(next)->second == begin)
    begin = std::prev(next)->first, std::prev(next)->second = end;
  else
    free_[begin] = end;
  unmap(begin, end);
}

bool Heap::map(Place begin, Place end) {
  CUmemAllocationProp kind = {};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location = location(device_);
  CUmemAccessDesc access = {};
  access.location = location(device_);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  for (Place p = first_page(begin); p < end_page(end); ++p) {
    CUmemGenericAllocationHandle& handle = handles_[static_cast<std::size_t>(p)];
    if (handle != 0) continue;
    const CUdeviceptr at = base_ + static_cast<CUdeviceptr>(p) * page_size;
    CUmemGenericAllocationHandle made = 0;
    if (driver().create(&made, page_size, &kind, 0) != CUDA_SUCCESS) return false;
    if (driver().map(at, page_size, 0, made, 0) != CUDA_SUCCESS) {
      (void)driver().release(made);
      return false;
    }
    handle = made;
    if (driver().set_access(at, page_size, &access, 1) != CUDA_SUCCESS) return false;
  }
  return true;
}

void Heap::unmap(Place begin, Place end) noexcept {
  for (Place p = end_page(begin); p < end / page.count; ++p) {
    CUmemGenericAllocationHandle& handle = handles_[static_cast<std::size_t>(p)];
    if (handle == 0) continue;
    (void)driver().unmap(base_ + static_cast<CUdeviceptr>(p) * page_size, page_size);
    (void)driver().release(handle);
    handle = 0;
  }
}

}  // namespace ebb::cuda
