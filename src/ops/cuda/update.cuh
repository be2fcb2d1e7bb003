// Optimizer updates at the speed of memory: a thread takes four neighbouring parameters at a time,
// with 16-byte accesses to their state.
#pragma once

#include "ops/cuda/calls.cuh"
#include "ops/cuda/element.cuh"
#include "ops/cuda/launch.cuh"

namespace ebb::cuda {

inline constexpr int update_width = 4;

// Four elements, aligned to their size together.
template <class T>
struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) Four {
  T values[4];
};

// Parameters per block are a multiple of the width. There are enough blocks to fill the device, and
// several groups per thread to amortise what a block computes first.
inline std::int64_t update_blocks(std::int64_t count) {
  return std::min<std::int64_t>(ceil_div(count, update_width * item_threads), 1056);
}

// Calls body(Number<n>, i) for groups of n = 4 elements from i on, then n = 1 for the rest.
template <int n>
struct Number {};
template <class Body>
__device__ void for_groups(std::int64_t count, bool wide, const Body& body) {
  const std::int64_t groups = wide ? count / update_width : 0;
  for_items(groups, [&](std::int64_t g) { body(Number<update_width>{}, g * update_width); });
  for_items(count - groups * update_width,
            [&](std::int64_t i) { body(Number<1>{}, groups * update_width + i); });
}

// Whether this block has any elements. In a group, every call gets as many blocks as the largest
// needs.
__device__ inline bool has_groups(std::int64_t count, bool wide) {
  const std::int64_t items = wide ? ceil_div(count, update_width) : count;
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x < items;
}

template <int n, class T>
__device__ void load_group(const T* from, Compute<T> (&to)[n]) {
  if constexpr (n == 4) {
    Four<T> raw;
    if constexpr (sizeof(T) == 2) {
      const uint2 bits = *reinterpret_cast<const uint2*>(from);
      raw.values[0].bits = static_cast<std::uint16_t>(bits.x);
      raw.values[1].bits = static_cast<std::uint16_t>(bits.x >> 16);
      raw.values[2].bits = static_cast<std::uint16_t>(bits.y);
      raw.values[3].bits = static_cast<std::uint16_t>(bits.y >> 16);
    } else {
      raw = *reinterpret_cast<const Four<T>*>(from);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) to[k] = widen(raw.values[k]);
  } else {
    to[0] = widen(*from);
  }
}

template <int n, class T>
__device__ void store_group(T* to, const Compute<T> (&from)[n]) {
  if constexpr (n == 4) {
    if constexpr (sizeof(T) == 2) {
      uint2 bits;
      bits.x = narrow<T>(from[0]).bits | static_cast<unsigned>(narrow<T>(from[1]).bits) << 16;
      bits.y = narrow<T>(from[2]).bits | static_cast<unsigned>(narrow<T>(from[3]).bits) << 16;
      *reinterpret_cast<uint2*>(to) = bits;
    } else {
      Four<T> raw;
#pragma unroll
      for (int k = 0; k < 4; ++k) raw.values[k] = from[k];
      *reinterpret_cast<Four<T>*>(to) = raw;
    }
  } else {
    *to = narrow<T>(from[0]);
  }
}

// State of type S, which is C or BFloat16, computed in C.
template <int n, class S, class C>
__device__ void load_state(const S* from, C (&to)[n]) {
  Compute<S> stored[n];
  load_group<n>(from, stored);
#pragma unroll
  for (int k = 0; k < n; ++k) to[k] = static_cast<C>(stored[k]);
}
template <int n, class S, class C>
__device__ void store_state(S* to, const C (&from)[n]) {
  Compute<S> stored[n];
#pragma unroll
  for (int k = 0; k < n; ++k) stored[k] = static_cast<Compute<S>>(from[k]);
  store_group<n>(to, stored);
}

// A value computed by one thread and shared by the block, because computing it costs as much as
// updating many elements.
template <class T, class Make>
__device__ const T& made_once(const Make& make) {
  alignas(16) __shared__ unsigned char memory[sizeof(T)];
  T& shared = *reinterpret_cast<T*>(memory);
  if (threadIdx.x == 0) shared = make();
  __syncthreads();
  return shared;
}

}  // namespace ebb::cuda
