#include "onnx/weights.h"

#include <fmt/core.h>

#include "ebb/error.h"
#include "ebb/ops.h"
#include "ebb/pairs.h"
#include "ebb/program.h"
#include "ebb/storage.h"
#include "io/hugging_face/load_pairs.h"

namespace ebb::onnx {

ModuleWeights::ModuleWeights(const nn::ModuleBase& model) {
  for (const nn::NamedVariable& p : model.parameters()) {
    variables_.emplace(p.path, p.variable);
    if (p.packed) packed_.emplace(p.path, *p.packed);
  }
  for (const nn::NamedVariable& b : model.buffers()) variables_.emplace(b.path, b.variable);
}

FolderWeights::FolderWeights(const io::FolderWeights& folder, const nn::ModuleBase& model)
    : folder_(folder) {
  for (const nn::NamedVariable& p : model.parameters())
    if (p.packed) packed_.emplace(p.path, *p.packed);
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

SpreadWeights::SpreadWeights(const Weights& weights, const nn::ModuleBase& model)
    : weights_(weights) {
  // A folder may hold the whole matrix.
  for (const nn::NamedVariable& p : model.parameters())
    if (p.pairs && weights.has(io::positions_path(p.path))) pairs_.emplace(p.path, p);
}

TensorType SpreadWeights::type(const std::string& name) const {
  TensorType type = weights_.type(name);
  if (const auto found = pairs_.find(name); found != pairs_.end())
    type.shape = found->second.shape();
  return type;
}

void SpreadWeights::read(const std::string& name, const Sink& sink) const {
  const auto found = pairs_.find(name);
  if (found == pairs_.end()) return weights_.read(name, sink);
  const auto tensor = [&](const std::string& own) {
    std::vector<std::byte> bytes;
    weights_.read(own, [&](std::span<const std::byte> piece) {
      bytes.insert(bytes.end(), piece.begin(), piece.end());
    });
    return Tensor::from_bytes(bytes, weights_.type(own));
  };
  const Tensor values = tensor(name), positions = tensor(io::positions_path(name)),
               matrix = spread_pairs(values, positions);
  const Tensor whole = eval(found->second.pairs->transposed ? transpose(matrix) : matrix);
  sink({whole.node()->storage()->data(), static_cast<std::size_t>(whole.type().bytes().count)});
}

std::vector<std::string> JoinedWeights::parts(const std::string& name) const {
  if (!names_.fused || weights_.has(name)) return {};
  const std::string whole = "." + names_.fused->whole + ".";
  const std::size_t at = name.find(whole);
  if (at == std::string::npos) return {};
  std::vector<std::string> found;
  for (const std::string& part : names_.fused->parts)
    found.push_back(std::string(name).replace(at, whole.size(), "." + part + "."));
  // Packed parts have their own scales and are not joined.
  if (weights_.packed(found.front())) return {};
  return found;
}

TensorType JoinedWeights::type(const std::string& name) const {
  const std::vector<std::string> found = parts(name);
  if (found.empty()) return weights_.type(name);
  TensorType type = weights_.type(found.front());
  type.shape[0] *= static_cast<std::int64_t>(found.size());
  return type;
}

void JoinedWeights::read(const std::string& name, const Sink& sink) const {
  const std::vector<std::string> found = parts(name);
  if (found.empty()) return weights_.read(name, sink);
  std::vector<std::vector<std::byte>> whole(found.size());  // copies of one layer's parts
  for (std::size_t i = 0; i < found.size(); ++i)
    weights_.read(found[i], [&](std::span<const std::byte> piece) {
      whole[i].insert(whole[i].end(), piece.begin(), piece.end());
    });
  const std::size_t heads = static_cast<std::size_t>(names_.fused->heads),
                    each = whole.front().size() / heads;  // bytes of a head's rows
  for (std::size_t head = 0; head < heads; ++head)
    for (const std::vector<std::byte>& part : whole)
      sink(std::span(part).subspan(head * each, each));
}

}  // namespace ebb::onnx
