#include "io/hugging_face/load_pairs.h"

#include <fmt/core.h>

#include <vector>

#include "ebb/error.h"
#include "ebb/ops.h"
#include "ebb/pairs.h"
#include "ebb/program.h"
#include "ebb/storage.h"
#include "ops/pairs/pattern.h"

namespace ebb::io {
namespace {

std::span<const std::byte> bytes_of(const Tensor& value) {
  return {value.node()->storage()->data(), static_cast<std::size_t>(value.type().bytes().count)};
}

}  // namespace

std::string positions_path(const std::string& weight) {
  return weight.substr(0, weight.rfind('.') + 1) + "positions";
}

void assign_pairs(const Tensor& matrix, const nn::NamedVariable& weight, const std::string& what) {
  const bool transposed = weight.pairs->transposed;
  if (const auto fault = pattern_fault(bytes_of(matrix), matrix.type(), transposed))
    throw FileError(fmt::format("{}: {}", what, *fault));
  const Tensor whole = transposed ? transpose(matrix) : matrix, chosen = choose_pairs(whole);
  const std::vector<Tensor> lazy{take_pairs(whole, chosen), chosen};
  const std::vector<Tensor> made = eval(lazy);
  Variable(weight.variable).assign_bytes(bytes_of(made[0]));
  Variable(weight.pairs->positions).assign_bytes(bytes_of(made[1]));
}

void load_positions(const SafetensorsFile& file, const std::string& name,
                    const nn::NamedVariable& weight) {
  const Shape& values = weight.variable.shape();
  const std::vector<std::byte> bytes = file.bytes(name);
  if (const auto fault = positions_fault(bytes, values[0], 2 * values[1]))
    throw FileError(fmt::format("{}: tensor \"{}\": {}", file.path().string(), name, *fault));
  Variable(weight.pairs->positions).assign_bytes(bytes);
}

}  // namespace ebb::io
