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

// The parameter that a state belongs to, or the number of variables if it belongs to the whole
// step, such as the loss scale.
std::size_t owner_of(const Structure& s, const std::string& path) {
  std::size_t v = 0;
  while (v < s.variables.size() && !path.starts_with(s.variables[v].path + ".")) ++v;
  return v;
}

}  // namespace

bool is_by_element(const Shape& state, const Shape& parameter) {
  if (state.rank() < parameter.rank()) return false;
  for (int i = 0; i < parameter.rank(); ++i)
    if (state[i] != parameter[i]) return false;
  return true;
}

StepState state_of(TrainStep& step) {
  step.make_state();
  StepState state{{}, step.step(), step.optimizer_start()};
  for (const auto& [path, value] : step.optimizer_state().all()) state.values.emplace(path, value);
  return state;
}

StepState sliced_state(const Structure& s, const Removal& removal, StepState state) {
  StepState kept{{}, state.step, state.optimizer_start};
  while (!state.values.empty()) {
    const auto entry = state.values.extract(state.values.begin());
    const std::string& path = entry.key();
    const Tensor& value = entry.mapped();
    const std::size_t v = owner_of(s, path);
    if (v == s.variables.size()) {
      kept.values.emplace(path, value);
      continue;
    }
    const std::string owner = path_without(s, removal, v);
    if (owner.empty()) continue;  // removed with its block
    const Variable& parameter = s.variables[v].variable;
    const auto axes = indices_that_go(s, removal, v);
    if (!axes.empty() && !is_by_element(value.shape(), parameter.shape()))
      throw ValueError(fmt::format(
          "prune: the state \"{}\" is {} and cannot be sliced like its parameter, which is {}; "
          "optimizers with a number for each weight can: adam, adamw, sgd, lion",
          path, to_string(value.type()), to_string(parameter.type())));
    kept.values.emplace(owner + path.substr(s.variables[v].path.size()),
                        axes.empty() ? value : sliced(value, axes));
  }
  return kept;
}

void give_state(StepState state, TrainStep& smaller) {
  smaller.make_state();
  while (!state.values.empty()) {
    const auto entry = state.values.extract(state.values.begin());
    assign(smaller, entry.key(), entry.mapped());
  }
  smaller.set_step(state.step, state.optimizer_start);
}

void copy_state(const Structure& s, const Removal& removal, TrainStep& dense, TrainStep& smaller) {
  give_state(sliced_state(s, removal, state_of(dense)), smaller);
}

}  // namespace ebb::prune
