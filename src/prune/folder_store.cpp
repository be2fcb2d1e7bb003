#include "prune/folder_store.h"

#include <fmt/core.h>

#include <algorithm>

#include "ebb/ops.h"
#include "ebb/pairs.h"
#include "ebb/program.h"
#include "ebb/storage.h"
#include "io/hugging_face/load_pairs.h"

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
  const nn::NamedVariable& form = writer_.form(variable.path);
  if (form.pairs) {
    const std::string what = fmt::format("\"{}\"", variable.path);
    io::assign_pairs(variable.variable, form, what);
    writer_.write(variable.path, bytes_of(form.variable));
    writer_.write(io::positions_path(variable.path), bytes_of(form.pairs->positions));
    form.variable.node()->set_storage(nullptr);
    form.pairs->positions.node()->set_storage(nullptr);
    return;
  }
  const auto& packed = form.packed;
  if (!packed) return writer_.write(variable.path, bytes_of(variable.variable));
  const Tensor matrix =
      packed->transposed ? transpose(variable.variable) : Tensor(variable.variable);
  writer_.write(variable.path, bytes_of(eval(quantise(matrix, packed->encoding))));
}

void FolderStore::release(const nn::NamedVariable& variable) {
  variable.variable.node()->set_storage(nullptr);
}

Bytes FolderStore::extra_bytes(const nn::NamedVariable& variable) const {
  const nn::NamedVariable& form = writer_.form(variable.path);
  Bytes packing;
  if (form.packed || form.pairs) {
    const Tensor weight = input({form.shape(), dtype_}, "weight");
    Graph graph;
    graph.inputs = {weight};
    if (form.packed) {
      graph.outputs = {
          quantise(form.packed->transposed ? transpose(weight) : weight, form.packed->encoding)};
    } else {
      const Tensor matrix = form.pairs->transposed ? transpose(weight) : weight,
                   chosen = choose_pairs(matrix);
      graph.outputs = {take_pairs(matrix, chosen), chosen};
      // The bytes to be written are in memory together with the program's results.
      for (const TensorType& type : {form.variable.type(), form.pairs->positions.type()})
        packing += Storage::reservation(type.bytes());
    }
    packing += plan_program(graph).peak;
  }
  return std::max(packing, weights_.loading_bytes(variable));
}

}  // namespace ebb::prune
