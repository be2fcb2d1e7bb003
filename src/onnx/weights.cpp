#include "onnx/weights.h"

#include <fmt/core.h>

#include "ebb/error.h"
#include "ebb/storage.h"

namespace ebb::onnx {

ModuleWeights::ModuleWeights(const nn::ModuleBase& model) {
  for (const nn::NamedVariable& p : model.parameters()) variables_.emplace(p.path, p.variable);
  for (const nn::NamedVariable& b : model.buffers()) variables_.emplace(b.path, b.variable);
}

const Variable& ModuleWeights::at(const std::string& name) const {
  const auto found = variables_.find(name);
  if (found == variables_.end())
    throw ValueError(fmt::format("[onnx] the model has no parameter \"{}\"", name));
  return found->second;
}

void ModuleWeights::read(const std::string& name, const Sink& sink) const {
  const Variable& variable = at(name);
  if (!variable.has_value()) variable.materialise();
  const Storage& storage = *variable.node()->storage();
  const auto size = static_cast<std::size_t>(variable.type().bytes().count);
  if (storage.device().kind == Device::Kind::cpu) return sink({storage.data(), size});
  std::vector<std::byte> copy(size);  // of one tensor, on the host
  storage.read(copy);
  sink(copy);
}

std::string CheckpointWeights::stored(const std::string& name) const {
  const std::string buffer = "buffer." + name;
  return file_.entries().contains(buffer) ? buffer : "model." + name;
}

}  // namespace ebb::onnx
