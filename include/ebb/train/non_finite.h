// Finding where a computation stops being finite.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "ebb/nn/module.h"
#include "ebb/program.h"

namespace ebb {

// The first value that is infinite or NaN although all its inputs are finite.
struct NonFinite {
  enum class Kind : std::uint8_t { batch, parameter, result } kind = Kind::result;
  std::string module;  // its path, or the name of the parameter or input
  std::string op;      // of a result
};
std::string to_string(const NonFinite& found);  // "the result of log at \"h.3.mlp\""

// Recomputes `target`, one of the graph's values, from `inputs` and checks every value on the way.
// Updates nothing. Empty if `target` is finite. Keeps the budget of `options`, in several runs if
// necessary; throws a MemoryError if a value cannot be checked within it.
std::optional<NonFinite> find_non_finite(const Graph& graph, const Tensor& target,
                                         std::span<const Tensor> inputs, std::uint64_t step,
                                         const CompileOptions& options);

// The path of the first parameter or buffer that holds an infinity or NaN, if any does.
std::optional<std::string> non_finite_variable(const nn::ModuleBase& model);
std::optional<std::string> non_finite_variable(const std::vector<nn::NamedVariable>& parameters,
                                               const std::vector<nn::NamedVariable>& buffers);

// The parameter with the largest absolute value, without NaN.
struct LargestWeight {
  std::string path;  // empty if all are zero
  double value = 0.0;
};
LargestWeight largest_weight(const nn::ModuleBase& model);

}  // namespace ebb
