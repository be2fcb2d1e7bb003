// Launching kernels, and the slot in which they report bad data.
#pragma once

#include <cstdint>

#include "core/cuda/check.h"
#include "core/cuda/cuda.h"
#include "ebb/op.h"

namespace ebb::cuda {

inline cudaStream_t stream_of(const KernelArgs& args) {
  return static_cast<cudaStream_t>(args.stream);
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// launch({args, "softmax", grid, block}, kernel, arguments...). An empty grid runs nothing.
struct Launch {
  const KernelArgs& args;
  const char* name;  // for errors
  dim3 grid, block;
  std::size_t shared = 0;
};

template <class... P, class... A>
void launch(const Launch& l, void (*kernel)(P...), A&&... a) {
  if (l.grid.x == 0 || l.grid.y == 0 || l.grid.z == 0) return;
  if (l.shared > 48 * 1024)
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(l.shared)),
          l.name);
  kernel<<<l.grid, l.block, l.shared, stream_of(l.args)>>>(static_cast<P>(a)...);
  check(cudaGetLastError(), l.name);
}

// One thread for each of `count` items, or more items each when there are very many. Kernels walk
// them with `for_items`.
inline constexpr int item_threads = 256;
inline dim3 item_grid(std::int64_t count) {
  const std::int64_t blocks = ceil_div(count, item_threads);
  return dim3(static_cast<unsigned>(blocks < (1 << 20) ? blocks : 1 << 20));
}
template <class Body>
__device__ void for_items(std::int64_t count, const Body& body) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step)
    body(i);
}

// Where a kernel notes an index that is out of range.
struct FaultSlot {
  Fault* fault;
  std::int32_t instruction;

  explicit FaultSlot(const KernelArgs& args)
      : fault(&args.control->fault), instruction(args.instruction + 1) {}

  __device__ void out_of_range(std::int64_t at, std::int64_t index, std::int64_t size) const {
    if (atomicCAS(&fault->instruction, 0, instruction) != 0) return;  // the first is enough
    fault->position = at, fault->value = index, fault->limit = size;
  }
};

}  // namespace ebb::cuda
