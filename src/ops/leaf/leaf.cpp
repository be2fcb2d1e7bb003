#include "ops/leaf/leaf.h"

#include <fmt/core.h>

#include "ebb/error.h"
#include "ebb/node.h"
#include "ebb/ops.h"
#include "ebb/storage.h"
#include "ebb/variable.h"

namespace ebb {
namespace {

OpSpec<LeafAttributes> leaf(std::string_view name, std::string_view summary) {
  OpSpec<LeafAttributes> spec{.name = name, .summary = summary};
  spec.infer = [](const Call& call, const LeafAttributes& a) {
    for (std::int64_t extent : a.type.shape)
      if (extent < 0)
        call.fail_shape(fmt::format("sizes must not be negative, but the shape is {}",
                                    to_string(a.type.shape)));
    return std::vector{a.type};
  };
  spec.gradient = zero_gradient;
  spec.recomputable = false;
  return spec;
}

}  // namespace

const Op& constant_op() {
  static const TypedOp<LeafAttributes> op(leaf("constant", "bytes given once"));
  return op;
}
const Op& input_op() {
  static const TypedOp<LeafAttributes> op(leaf("input", "bytes given at each run"));
  return op;
}
const Op& variable_op() {
  static const TypedOp<LeafAttributes> op(leaf("variable", "bytes kept from run to run"));
  return op;
}

Tensor input(const TensorType& type, std::string_view name, Device device) {
  const Tensor result = create(input_op(), device, LeafAttributes{type, std::string(name)});
  result.node()->set_category(Category::inputs);
  return result;
}

Tensor Tensor::from_bytes(std::span<const std::byte> bytes, const TensorType& type, Device device) {
  if (static_cast<std::int64_t>(bytes.size()) != type.bytes().count)
    throw ShapeError(fmt::format("[constant] {} holds {} bytes, but {} came", to_string(type),
                                 type.bytes().count, bytes.size()));
  const Tensor result = create(constant_op(), device, LeafAttributes{type, {}});
  auto storage = Storage::allocate(device, type.bytes());
  storage->write(bytes);
  result.node()->set_storage(std::move(storage));
  result.node()->set_category(Category::inputs);
  return result;
}

Variable::Variable(Tensor initial, Category category)
    : Tensor(
          create(variable_op(), initial.device(), LeafAttributes{initial.type(), current_path()})) {
  node()->set_initial(std::move(initial));
  node()->set_category(category);
}

}  // namespace ebb
