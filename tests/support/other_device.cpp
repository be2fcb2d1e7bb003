#include "support/other_device.h"

#include <cstdio>

#include "core/cuda/cuda.h"
#include "ebb/ops.h"
#include "ebb/program.h"
#include "ebb/storage.h"
#include "ebb/variable.h"
#include "ops/leaf/leaf.h"

namespace ebb::test {

bool built_with_cuda() { return cuda::built(); }

bool cuda_present() {
  static const bool present = [] {
    const bool found = cuda::device_count() > 0;
    if (built_with_cuda() && !found)
      std::puts("[   NOTE   ] no CUDA device: kernels were planned but not run");
    return found;
  }();
  return present;
}

Tensor OtherDevice::start_of(const Node& variable) {
  if (!variable.storage()) return (*this)(variable.initial());
  const TensorType& type = variable.outputs()[0];
  if (constants_ == Constants::inputs) return zeros(type.shape, type.dtype, device_);
  std::vector<std::byte> bytes(static_cast<std::size_t>(type.bytes().count));
  variable.storage()->read(bytes);
  return Tensor::from_bytes(bytes, type, device_);
}

std::vector<Tensor> OtherDevice::moved(const Node& node) {
  const PathScope path(node.path(), PathScope::Kind::absolute);
  if (&node.op() == &variable_op()) {
    const Variable variable(start_of(node), node.category());
    variables_.emplace(&node, variable);
    return {variable};
  }
  if (&node.op() == &input_op())
    return {input(node.outputs()[0], node.attributes().as<LeafAttributes>().name, device_)};
  if (&node.op() == &constant_op()) {
    const Tensor constant(std::const_pointer_cast<Node>(node.shared_from_this()), 0);
    if (constants_ == Constants::copied) return {to_device(constant, device_)};
    stand_ins_.push_back(
        input(node.outputs()[0], "constant " + std::to_string(stand_ins_.size()), device_));
    return {stand_ins_.back()};
  }
  std::vector<Tensor> inputs;
  for (const Tensor& each : node.inputs())
    inputs.push_back(done_.at(each.node().get()).at(static_cast<std::size_t>(each.output())));
  const auto copy = std::make_shared<Node>(node.op(), node.attributes(), std::move(inputs),
                                           node.outputs(), device_, node.path());
  copy->set_category(node.category());
  std::vector<Tensor> outputs;
  for (std::size_t i = 0; i < copy->outputs().size(); ++i)
    outputs.emplace_back(copy, static_cast<int>(i));
  return outputs;
}

Tensor OtherDevice::operator()(const Tensor& tensor) {
  for (const auto& node : topological_order({.inputs = {}, .outputs = {tensor}, .updates = {}}))
    if (!done_.contains(node.get())) {
      std::vector<Tensor> outputs = moved(*node);
      done_.emplace(node.get(), std::move(outputs));
    }
  return done_.at(tensor.node().get()).at(static_cast<std::size_t>(tensor.output()));
}

std::vector<Tensor> OtherDevice::operator()(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> result;
  for (const Tensor& tensor : tensors) result.push_back((*this)(tensor));
  return result;
}

Variable OtherDevice::operator()(const Variable& variable) {
  (*this)(static_cast<const Tensor&>(variable));
  return variables_.at(variable.node().get());
}

Graph OtherDevice::operator()(const Graph& graph) {
  Graph result{(*this)(graph.inputs), (*this)(graph.outputs), {}};
  for (const Update& update : graph.updates)
    result.updates.push_back({(*this)(update.target), (*this)(update.value)});
  result.inputs.insert(result.inputs.end(), stand_ins_.begin(), stand_ins_.end());
  return result;
}

}  // namespace ebb::test
