// Finding where a computation stops being finite.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "ebb/nn/module.h"
#include "ebb/program.h"

namespace ebb {

// The first value on the way to a result that is infinite or NaN while all it is computed from is
// finite.
struct NonFinite {
  enum class Kind : std::uint8_t { batch, parameter, result } kind = Kind::result;
  std::string module;  // its path, or the name of the parameter or input
  std::string op;      // of a result
};
std::string to_string(const NonFinite& found);  // "the result of log at \"h.3.mlp\""

// Computes what leads to `target`, one of the graph's values, once more, with `inputs` for the
// graph's, and looks at every value. Updates nothing. Empty if `target` is finite.
std::optional<NonFinite> find_non_finite(const Graph& graph, const Tensor& target,
                                         std::span<const Tensor> inputs, std::uint64_t step,
                                         const CompileOptions& options);

// The path of the first parameter or buffer that holds an infinity or NaN, if any does.
std::optional<std::string> non_finite_variable(const nn::ModuleBase& model);

}  // namespace ebb
