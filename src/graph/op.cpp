#include "ebb/op.h"

#include <fmt/core.h>

#include <array>

#include "ebb/error.h"
#include "ebb/node.h"

namespace ebb {
namespace {

std::string place(std::string_view op, std::string_view path) {
  return path.empty() ? fmt::format("[{}]", op) : fmt::format("[{}] at \"{}\":", op, path);
}

std::string describe(const Call& call, const std::string& what) {
  std::string text = fmt::format("{} {}", place(call.op.name(), call.path), what);
  for (std::size_t i = 0; i < call.inputs.size(); ++i)
    text += fmt::format("{} {}", i == 0 ? "; inputs:" : ",", to_string(call.inputs[i]));
  return text;
}

}  // namespace

void Call::fail_shape(const std::string& what) const { throw ShapeError(describe(*this, what)); }
void Call::fail_dtype(const std::string& what) const { throw DTypeError(describe(*this, what)); }
void Call::fail_value(const std::string& what) const { throw ValueError(describe(*this, what)); }

int Call::axis(std::int64_t axis, int rank) const {
  if (axis < -rank || axis >= rank)
    fail_value(fmt::format("axis {} is outside [{}, {}) for a tensor of rank {}", axis, -rank, rank,
                           rank));
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

void Call::require_rank(int input, int rank) const {
  if (shape(input).rank() != rank)
    fail_shape(fmt::format("input {} must have rank {}, but has rank {}", input, rank,
                           shape(input).rank()));
}

void Call::require_floating(int input) const {
  if (!is_floating(dtype(input)))
    fail_dtype(fmt::format("input {} must be of a floating-point dtype, but is {}", input,
                           name(dtype(input))));
}

void Call::require_index(int input) const {
  if (dtype(input) != i64 && dtype(input) != i32)
    fail_dtype(fmt::format("input {} holds indices and must be int64 or int32, but is {}", input,
                           name(dtype(input))));
}

void Call::require_same_dtype(int first, int second) const {
  if (dtype(first) != dtype(second))
    fail_dtype(fmt::format(
        "inputs {} and {} must have the same dtype, but are {} and {}; cast() one of them", first,
        second, name(dtype(first)), name(dtype(second))));
}

void KernelRequest::no_kernel(DType dtype) const {
  throw DTypeError(fmt::format("[{}] there is no kernel for dtype {} on device {}", op.name(),
                               name(dtype), to_string(target.device)));
}

std::string_view name(Work work) {
  constexpr std::array<std::string_view, work_count> names{"elementwise", "product", "attention",
                                                           "convolution"};
  return names[static_cast<std::size_t>(work)];
}

Cost default_cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
                  double operations) {
  Cost cost;
  for (const TensorType& type : inputs) cost.moved += type.bytes();
  for (const TensorType& type : outputs) {
    cost.moved += type.bytes();
    cost.flops += operations * static_cast<double>(type.shape.elements());
  }
  return cost;
}

Call call_on(const Op& op, const Tensor& x) {
  if (!x)
    throw ValueError(
        fmt::format("{} the input is an empty tensor", place(op.name(), current_path())));
  return {op, std::span(&x.type(), 1), x.device(), current_path()};
}

int wrap_axis(const Op& op, const Tensor& x, std::int64_t axis, std::optional<int> rank) {
  return call_on(op, x).axis(axis, rank.value_or(x ? x.rank() : 0));
}

std::vector<Tensor> apply(const Op& op, std::vector<Tensor> inputs, Attributes attributes) {
  const std::string& path = current_path();
  std::vector<TensorType> types;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i])
      throw ValueError(fmt::format("{} input {} is an empty tensor", place(op.name(), path), i));
    types.push_back(inputs[i].type());
  }
  const Device device = inputs.empty() ? device::cpu : inputs.front().device();
  for (const Tensor& input : inputs)
    if (input.device() != device)
      throw DeviceError(fmt::format("{} all inputs must be on one device, but {} and {} came",
                                    place(op.name(), path), to_string(device),
                                    to_string(input.device())));
  std::vector<TensorType> outputs = op.infer(Call{op, types, device, path}, attributes);
  auto node = std::make_shared<Node>(op, std::move(attributes), std::move(inputs),
                                     std::move(outputs), device, path);
  std::vector<Tensor> results;
  for (std::size_t i = 0; i < node->outputs().size(); ++i)
    results.emplace_back(node, static_cast<int>(i));
  return results;
}

Tensor apply1(const Op& op, std::vector<Tensor> inputs, Attributes attributes) {
  return apply(op, std::move(inputs), std::move(attributes)).front();
}

Tensor create(const Op& op, Device device, Attributes attributes) {
  const std::string& path = current_path();
  std::vector<TensorType> outputs = op.infer(Call{op, {}, device, path}, attributes);
  return {std::make_shared<Node>(op, std::move(attributes), std::vector<Tensor>{},
                                 std::move(outputs), device, path),
          0};
}

}  // namespace ebb
