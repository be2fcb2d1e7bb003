// Pruning between two steps of a training run: the optimizer's state is sliced along.
//
//   const auto removal = prune::choose(structure, scores, {.keep = 0.9});
//   const auto smaller = prune::pruned(model, structure, removal);
//   TrainStep next(*smaller, optimizer, loss_of(*smaller));   // planned anew for the smaller
//   shapes prune::copy_state(structure, removal, step, next);
#pragma once

#include "ebb/prune/remove.h"

namespace ebb::prune {

// Gives `smaller` the state of `dense`, without what goes, and its number of steps. Both have the
// same optimizer. State that is not stored element by element, such as 8-bit or factored moments,
// cannot be sliced: if its parameter loses indices, that is a ValueError.
void copy_state(const Structure& structure, const Removal& removal, TrainStep& dense,
                TrainStep& smaller);

}  // namespace ebb::prune
