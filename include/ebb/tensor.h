// Tensors are cheap handles on nodes of a lazy graph. Building one computes nothing, and neither
// does asking for its shape or dtype; `eval` (program.h) or a compiled step does.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/bytes.h"
#include "ebb/device.h"
#include "ebb/dtype.h"
#include "ebb/half.h"
#include "ebb/shape.h"

namespace ebb {

class Node;

// The properties of a tensor that are known before it is computed.
struct TensorType {
  Shape shape;
  DType dtype = f32;

  Bytes bytes() const { return shape.elements() * size_of(dtype); }
  friend bool operator==(const TensorType&, const TensorType&) = default;
};
std::string to_string(const TensorType& type);  // "float32 (2, 3)"

// The dtype a C++ type stands for. `unsigned char` is uint8, `bool` is boolean.
template <class T>
inline constexpr DType dtype_of = [] {
  static_assert(sizeof(T) == 0, "no dtype for this C++ type");
  return f32;
}();
template <>
inline constexpr DType dtype_of<double> = f64;
template <>
inline constexpr DType dtype_of<float> = f32;
template <>
inline constexpr DType dtype_of<Half> = f16;
template <>
inline constexpr DType dtype_of<BFloat16> = bf16;
template <>
inline constexpr DType dtype_of<std::int64_t> = i64;
template <>
inline constexpr DType dtype_of<std::int32_t> = i32;
template <>
inline constexpr DType dtype_of<std::uint8_t> = u8;
template <>
inline constexpr DType dtype_of<bool> = b8;

class Tensor {
 public:
  Tensor() = default;  // no tensor; `operator bool` is false
  Tensor(std::shared_ptr<Node> node, int output) : node_(std::move(node)), output_(output) {}

  explicit operator bool() const { return node_ != nullptr; }
  const TensorType& type() const;
  const Shape& shape() const { return type().shape; }
  DType dtype() const { return type().dtype; }
  int rank() const { return shape().rank(); }
  Device device() const;
  std::string_view path() const;  // of the module that made it, "h.3.mlp.fc"; may be empty

  const std::shared_ptr<Node>& node() const { return node_; }
  int output() const { return output_; }

  // The same node and output: identity, not equality of values.
  friend bool operator==(const Tensor&, const Tensor&) = default;

  // A tensor that holds a copy of `values`, in row-major order.
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape) {
    return from_bytes(std::as_bytes(values), {shape, dtype_of<T>});
  }
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape) {
    return from(std::span<const T>(values), shape);
  }
  static Tensor from_bytes(std::span<const std::byte> bytes, const TensorType& type,
                           Device device = device::cpu);

  // Evaluates and copies out; T must be the C++ type of the dtype.
  template <class T>
  std::vector<T> to_vector() const {
    std::vector<T> values(static_cast<std::size_t>(shape().elements()));
    copy_to(std::as_writable_bytes(std::span(values)), dtype_of<T>);
    return values;
  }
  double item() const;  // the value of a one-element tensor of any dtype

 private:
  void copy_to(std::span<std::byte> bytes, DType expected) const;

  std::shared_ptr<Node> node_;
  int output_ = 0;
};

}  // namespace ebb

template <>
struct std::hash<ebb::Tensor> {
  std::size_t operator()(const ebb::Tensor& t) const noexcept {
    return std::hash<const void*>{}(t.node().get()) * 31 + static_cast<std::size_t>(t.output());
  }
};
