// Tensors of indices, int64 or int32, as kernels read them.
#pragma once

#include <cstdint>

#include "ebb/op.h"

namespace ebb::cuda {

struct Indices {
  const void* data;
  bool wide;  // int64

  Indices(const std::byte* address, DType dtype) : data(address), wide(dtype == i64) {}
  __device__ std::int64_t operator[](std::int64_t i) const {
    return wide ? static_cast<const std::int64_t*>(data)[i]
                : static_cast<const std::int32_t*>(data)[i];
  }
};

// An index tensor's dtype is checked when a kernel is bound.
inline DType index_dtype(const KernelRequest& request, int input) {
  const DType dtype = request.in(input).dtype();
  if (dtype != i64 && dtype != i32) request.no_kernel(dtype);
  return dtype;
}

}  // namespace ebb::cuda
