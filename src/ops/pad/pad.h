#pragma once

#include <bit>

#include "ebb/op.h"
#include "ops/pointwise/convert.h"

namespace ebb {

struct PadAttributes {
  IntList before, after, step;
  double value = 0.0;
  bool operator==(const PadAttributes&) const = default;
  void visit(auto&& field) {
    field("before", before);
    field("after", after);
    field("step", step);
    field("value", value);
  }
};

// The bits of a value of `dtype`, as an unsigned type of its size.
template <class T>
inline T fill_value(DType dtype, double value) {
  if (dtype == bf16) return std::bit_cast<T>(BFloat16(static_cast<float>(value)).bits);
  return std::bit_cast<T>(Half(static_cast<float>(value)).bits);
}
template <>
inline std::uint64_t fill_value(DType dtype, double value) {
  return dtype == f64 ? std::bit_cast<std::uint64_t>(value)
                      : std::bit_cast<std::uint64_t>(convert<std::int64_t>(value));
}
template <>
inline std::uint32_t fill_value(DType dtype, double value) {
  return dtype == f32 ? std::bit_cast<std::uint32_t>(static_cast<float>(value))
                      : std::bit_cast<std::uint32_t>(convert<std::int32_t>(value));
}
template <>
inline std::uint8_t fill_value(DType dtype, double value) {
  return dtype == b8 ? value != 0.0 : convert<std::uint8_t>(value);
}

const Op& pad_op();
Kernel bind_pad_cuda(const KernelRequest& request, const PadAttributes& attributes);

}  // namespace ebb
