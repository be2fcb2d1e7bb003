#include "prune/folder_store.h"

#include <algorithm>

#include "ebb/ops.h"
#include "ebb/program.h"
#include "ebb/storage.h"

namespace ebb::prune {
namespace {

std::span<const std::byte> bytes_of(const Tensor& value) {
  const Storage& storage = *value.node()->storage();
  return {storage.data(), static_cast<std::size_t>(value.type().bytes().count)};
}

}  // namespace

void FolderStore::fetch(const nn::NamedVariable& variable) { weights_.load(variable, dtype_); }

void FolderStore::keep(const nn::NamedVariable& variable) {
  if (writer_.has(variable.path)) return;
  const auto& packed = writer_.form(variable.path).packed;
  if (!packed) return writer_.write(variable.path, bytes_of(variable.variable));
  const Tensor matrix =
      packed->transposed ? transpose(variable.variable) : Tensor(variable.variable);
  writer_.write(variable.path, bytes_of(eval(quantise(matrix, packed->encoding))));
}

void FolderStore::release(const nn::NamedVariable& variable) {
  variable.variable.node()->set_storage(nullptr);
}

Bytes FolderStore::extra_bytes(const nn::NamedVariable& variable) const {
  const auto& packed = writer_.form(variable.path).packed;
  Bytes packing;
  if (packed) {
    const Encoding& e = packed->encoding;
    const Tensor matrix = input({{e.rows, e.columns}, dtype_}, "weight");
    Graph graph;
    graph.inputs = {matrix};
    graph.outputs = {quantise(matrix, e)};
    packing = plan_program(graph).peak;
  }
  return std::max(packing, weights_.loading_bytes(variable));
}

}  // namespace ebb::prune
