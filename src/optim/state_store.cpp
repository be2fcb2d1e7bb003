#include <fmt/core.h>

#include "ebb/error.h"
#include "ebb/node.h"
#include "ebb/ops.h"
#include "ebb/optim/rule.h"

namespace ebb::optim {

Variable StateStore::get(const std::string& path, const TensorType& type, Device device,
                         double initial) {
  auto [found, missing] = variables_.try_emplace(path);
  if (missing) {
    const TraceScope scope(path);
    found->second = Variable(full(type.shape, initial, type.dtype, device), Category::optimizer);
  }
  if (found->second.type() != type)
    throw ShapeError(fmt::format("optimizer state \"{}\" is {}, but {} is needed", path,
                                 to_string(found->second.type()), to_string(type)));
  return found->second;
}

}  // namespace ebb::optim
