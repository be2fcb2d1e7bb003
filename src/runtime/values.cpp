// Reading values of tensors to the host, and writing values of variables.
#include <fmt/core.h>

#include <vector>

#include "ebb/error.h"
#include "ebb/node.h"
#include "ebb/ops.h"
#include "ebb/program.h"
#include "ebb/storage.h"
#include "ebb/variable.h"
#include "ops/leaf/leaf.h"

namespace ebb {

void Tensor::copy_to(std::span<std::byte> bytes, DType expected) const {
  if (!node_) throw ValueError("[to_vector] an empty tensor has no values");
  if (dtype() != expected && !(dtype() == b8 && expected == u8))
    throw DTypeError(fmt::format("[to_vector] the tensor is {}, but was read as {}", name(dtype()),
                                 name(expected)));
  const Tensor value = node_->storage() ? *this : eval(*this);
  value.node()->storage()->read(bytes);
}

Tensor to_device(const Tensor& tensor, Device device) {
  if (!tensor) throw ValueError("[to_device] an empty tensor has no values");
  const Tensor value = tensor.node()->storage() ? tensor : eval(tensor);
  if (value.device() == device && &value.node()->op() == &constant_op()) return value;
  std::vector<std::byte> bytes(static_cast<std::size_t>(value.type().bytes().count));
  value.node()->storage()->read(bytes);
  return Tensor::from_bytes(bytes, value.type(), device);
}

double Tensor::item() const {
  if (!node_ || shape().elements() != 1)
    throw ShapeError(fmt::format("[item] needs one element, but the tensor is {}",
                                 node_ ? to_string(type()) : "empty"));
  return cast(*this, f64).to_vector<double>().front();
}

void Variable::assign(const Tensor& value) {
  if (!value || value.type() != type())
    throw ShapeError(fmt::format("[assign] variable \"{}\" is {}, but the value is {}", path(),
                                 to_string(type()), value ? to_string(value.type()) : "empty"));
  const Tensor computed = value.node()->storage() ? value : eval(value);
  const Storage& from = *computed.node()->storage();
  const std::size_t size = static_cast<std::size_t>(type().bytes().count);
  if (from.on_host()) {
    assign_bytes({from.data(), size});
    return;
  }
  std::vector<std::byte> bytes(size);
  from.read(bytes);
  assign_bytes(bytes);
}

void Variable::assign_bytes(std::span<const std::byte> bytes) {
  if (static_cast<std::int64_t>(bytes.size()) != type().bytes().count)
    throw ShapeError(fmt::format("[assign] variable \"{}\" holds {} bytes, but {} came", path(),
                                 type().bytes().count, bytes.size()));
  if (!has_value()) node()->set_storage(Storage::allocate(device(), type().bytes()));
  node()->set_initial({});
  node()->storage()->write(bytes);
}

}  // namespace ebb
