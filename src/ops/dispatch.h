// From a dtype to a C++ type, for kernels that are templates.
#pragma once

#include <type_traits>
#include <utility>

#include "core/machine_half.h"
#include "ebb/op.h"

namespace ebb {

template <class T>
struct TypeTag {
  using type = T;
};

// The type a kernel computes in: float for half types.
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, Half> || std::is_same_v<T, MachineHalf> ||
                                       std::is_same_v<T, BFloat16>,
                                   float, T>;

// The dtype of that type: what statistics of a tensor are kept in.
inline DType compute_dtype(DType dtype) { return dtype == f16 || dtype == bf16 ? f32 : dtype; }

// Calls make(TypeTag<T>{}) with the type of a floating-point dtype; other dtypes have no kernel.
template <class Make>
Kernel dispatch_floating(const KernelRequest& request, DType dtype, const Make& make) {
  switch (dtype) {
    case DType::float64:
      return make(TypeTag<double>{});
    case DType::float32:
      return make(TypeTag<float>{});
    case DType::float16:
      return make(TypeTag<MachineHalf>{});
    case DType::bfloat16:
      return make(TypeTag<BFloat16>{});
    default:
      request.no_kernel(dtype);
  }
}

// The same for every dtype but boolean.
template <class Make>
Kernel dispatch_numeric(const KernelRequest& request, DType dtype, const Make& make) {
  switch (dtype) {
    case DType::int64:
      return make(TypeTag<std::int64_t>{});
    case DType::int32:
      return make(TypeTag<std::int32_t>{});
    case DType::uint8:
      return make(TypeTag<std::uint8_t>{});
    default:
      return dispatch_floating(request, dtype, make);
  }
}

// Calls make with the type of an index tensor: int64 or int32.
template <class Make>
Kernel dispatch_index(const KernelRequest& request, DType dtype, const Make& make) {
  switch (dtype) {
    case DType::int64:
      return make(TypeTag<std::int64_t>{});
    case DType::int32:
      return make(TypeTag<std::int32_t>{});
    default:
      request.no_kernel(dtype);
  }
}

// Calls make with an unsigned type of the dtype's size, for kernels that only move elements.
template <class Make>
Kernel dispatch_size(DType dtype, const Make& make) {
  switch (size_of(dtype).count) {
    case 8:
      return make(TypeTag<std::uint64_t>{});
    case 4:
      return make(TypeTag<std::uint32_t>{});
    case 2:
      return make(TypeTag<std::uint16_t>{});
    default:
      return make(TypeTag<std::uint8_t>{});
  }
}

}  // namespace ebb
