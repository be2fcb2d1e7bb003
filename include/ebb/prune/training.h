// Pruning between two steps of a training run: the optimizer's state is sliced along.
//
//   const auto removal = prune::choose(structure, scores, {.keep = 0.9});
//   const auto smaller = prune::pruned(model, structure, removal);
//   TrainStep next(*smaller, optimizer, loss_of(*smaller));   // planned anew for these shapes
//   prune::copy_state(structure, removal, step, next);
#pragma once

#include <map>
#include <string>

#include "ebb/prune/remove.h"

namespace ebb::prune {

// Gives `smaller` the state of `dense` without the removed indices, and its number of steps. Both
// have the same optimizer. State that is not stored element by element, such as 8-bit or factored
// moments, cannot be sliced: it is a ValueError if its parameter loses indices.
void copy_state(const Structure& structure, const Removal& removal, TrainStep& dense,
                TrainStep& smaller);

// Whether a state has a value, or several along further axes, for each element of its parameter.
bool is_by_element(const Shape& state, const Shape& parameter);

// The same in two parts, so that the dense step and its arena can be freed in between.
struct StepState {
  std::map<std::string, Tensor> values;  // by path
  std::int64_t step = 0, optimizer_start = 0;
};
StepState state_of(TrainStep& step);  // shares the step's bytes
// The sliced state, under the paths of the smaller model. The bytes of each value are freed as soon
// as its slice exists.
StepState sliced_state(const Structure& structure, const Removal& removal, StepState state);
void give_state(StepState state, TrainStep& smaller);

}  // namespace ebb::prune
