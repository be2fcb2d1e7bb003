// Values of tensors on the host: reading them out, and writing variables.
#include <fmt/format.h>

#include <cstring>

#include "ebb/error.h"
#include "ebb/node.h"
#include "ebb/ops.h"
#include "ebb/program.h"
#include "ebb/storage.h"
#include "ebb/variable.h"

namespace ebb {

void Tensor::copy_to(std::span<std::byte> bytes, DType expected) const {
  if (!node_) throw ValueError("[to_vector] an empty tensor has no values");
  if (dtype() != expected && !(dtype() == b8 && expected == u8))
    throw DTypeError(fmt::format("[to_vector] the tensor is {}, but was read as {}", name(dtype()),
                                 name(expected)));
  const Tensor value = node_->storage() ? *this : eval(*this);
  if (!bytes.empty()) std::memcpy(bytes.data(), value.node()->storage()->data(), bytes.size());
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
  assign_bytes(
      {computed.node()->storage()->data(), static_cast<std::size_t>(type().bytes().count)});
}

void Variable::assign_bytes(std::span<const std::byte> bytes) {
  if (static_cast<std::int64_t>(bytes.size()) != type().bytes().count)
    throw ShapeError(fmt::format("[assign] variable \"{}\" holds {} bytes, but {} came", path(),
                                 type().bytes().count, bytes.size()));
  if (!has_value()) node()->set_storage(Storage::allocate(device(), type().bytes()));
  node()->set_initial({});
  if (!bytes.empty()) std::memcpy(node()->storage()->data(), bytes.data(), bytes.size());
}

}  // namespace ebb
