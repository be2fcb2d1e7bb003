#include "ebb/prune/training.h"

#include <fmt/core.h>

#include "ebb/error.h"
#include "prune/slices.h"

namespace ebb::prune {
namespace {

void assign(TrainStep& to, const std::string& path, const Tensor& value) {
  const auto& all = to.optimizer_state().all();
  const auto found = all.find(path);
  if (found == all.end())
    throw ValueError(fmt::format(
        "prune: the smaller model's optimizer has no state \"{}\"; both need the same one", path));
  Variable target = found->second;
  target.assign(value);
}

}  // namespace

void copy_state(const Structure& s, const Removal& removal, TrainStep& dense, TrainStep& smaller) {
  dense.make_state();
  smaller.make_state();
  for (const auto& [path, state] : dense.optimizer_state().all()) {
    std::size_t v = 0;  // the parameter that it belongs to
    while (v < s.variables.size() && !path.starts_with(s.variables[v].path + ".")) ++v;
    if (v == s.variables.size()) {  // of the whole step, such as the loss scale
      assign(smaller, path, state);
      continue;
    }
    const std::string kept = path_without(s, removal, v);
    if (kept.empty()) continue;  // gone with its block
    const Variable& parameter = s.variables[v].variable;
    const auto axes = indices_that_go(s, removal, v);
    if (!axes.empty() && state.shape() != parameter.shape())
      throw ValueError(fmt::format(
          "prune: the state \"{}\" is {} and cannot be sliced like its parameter, which is {}; "
          "optimizers with a number for each weight can: adam, adamw, sgd, lion",
          path, to_string(state.type()), to_string(parameter.type())));
    assign(smaller, kept + path.substr(s.variables[v].path.size()), sliced(state, axes));
  }
  smaller.set_step(dense.step(), dense.optimizer_start());
}

}  // namespace ebb::prune
