// A heap for small allocations on a device. The driver allocates pages of 2 MiB: a matrix of 768 ×
// 768 floats, 2.25 MiB, would take two of them. Here allocations share pages, and unused pages are
// returned to the driver.
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
  static constexpr Bytes unit = 512_B;  // sizes are rounded up to multiples of it

  explicit Heap(Device device);

  // Null if the device has not enough memory.
  std::byte* allocate(Bytes size);
  // Frees memory from `allocate`; false if it came from elsewhere. No kernel may still use it.
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
