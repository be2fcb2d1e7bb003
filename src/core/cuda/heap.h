// Memory of a device in parts of any size. The driver gives it in pages of 2 MiB: a matrix of 768 ×
// 768 floats, 2.25 MiB, would take two of them. Here allocations share pages, and pages that none
// uses are the driver's again.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "core/cuda/cuda.h"

namespace ebb::cuda {

class Heap {
 public:
  static constexpr Bytes page = 2_MiB;
  static constexpr Bytes unit = 512_B;  // what sizes are rounded up to

  explicit Heap(Device device);

  // Null when the device has no such memory.
  std::byte* allocate(Bytes size);
  // Gives back what `allocate` gave; false when that did not. Nothing may be using it any more.
  bool release(std::byte* data) noexcept;

 private:
  using Place = std::int64_t;  // bytes from the first
  // The pages that [begin, end) lies in.
  static Place first_page(Place begin) { return begin / page.count; }
  static Place end_page(Place end) { return (end + page.count - 1) / page.count; }

  bool map(Place begin, Place end);
  void unmap(Place begin, Place end) noexcept;  // the pages that lie in it whole
  void add_free(Place begin, Place end) noexcept;

  Device device_;
  std::mutex mutex_;
  CUdeviceptr base_ = 0;                               // of addresses for all memory of the device
  std::map<Place, Place> free_;                        // begin → end; neighbours are joined
  std::map<Place, Place> used_;                        // likewise
  std::vector<CUmemGenericAllocationHandle> handles_;  // of each page; 0: not mapped
};

}  // namespace ebb::cuda
