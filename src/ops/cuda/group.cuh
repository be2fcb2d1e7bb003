// Threads that process one row together: a warp or a block. Reductions have a fixed order, so that
// sums always have the same bits.
#pragma once

namespace ebb::cuda {

struct Plus {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
// A maximum that starts at -infinity ignores NaN, because b > a is false for it.
struct Larger {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return b > a ? b : a;
  }
};

// Every lane gets the result. The exchange is symmetric, so all get the same bits.
template <class T, class Join>
__device__ inline T warp_join(T value, const Join& join) {
  static_assert(sizeof(T) % 4 == 0);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    if constexpr (sizeof(T) <= 8) {
      value = join(value, __shfl_xor_sync(0xffffffffu, value, distance));
    } else {
      T other;
      const unsigned* from = reinterpret_cast<const unsigned*>(&value);
      unsigned* to = reinterpret_cast<unsigned*>(&other);
#pragma unroll
      for (unsigned i = 0; i < sizeof(T) / 4; ++i)
        to[i] = __shfl_xor_sync(0xffffffffu, from[i], distance);
      value = join(value, other);
    }
  }
  return value;
}

template <int threads>
struct Group {
  int lane;  // of this thread among the `threads` of its row

  template <class T, class Join>
  __device__ T join(T value, const Join& how) const {
    value = warp_join(value, how);
    if constexpr (threads > 32) {
      alignas(16) __shared__ unsigned char memory[sizeof(T) * (threads / 32)];
      T* parts = reinterpret_cast<T*>(memory);
      __syncthreads();  // an earlier call's partial results have been read
      if (lane % 32 == 0) parts[lane / 32] = value;
      __syncthreads();
      value = parts[0];
#pragma unroll
      for (int i = 1; i < threads / 32; ++i) value = how(value, parts[i]);
    }
    return value;
  }
  template <class T>
  __device__ T sum(T value) const {
    return join(value, Plus{});
  }
  template <class T>
  __device__ T largest(T value) const {
    return join(value, Larger{});
  }
};

}  // namespace ebb::cuda
