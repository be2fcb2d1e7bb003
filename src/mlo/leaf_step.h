// The loss and gradients of a level whose batches are divided into leaves, on one rank or on
// several (ebb/train/ranks.h). Every sum over leaves is one value of all ranks and can be
// differentiated again (train/leaf_copies.h).
#pragma once

#include "mlo/level_step.h"

namespace ebb::mlo {

// traced_output of each leaf of this rank's part of a batch, reading that leaf's copies of
// variables.
std::vector<StepOutput> traced_leaves(Problem& problem, const Batch& part, LeafCopies& copies);

// traced_gradients over the leaves of all ranks. A leaf is summed over the parts of an update
// before leaves are summed, so that a gradient is exchanged once in an update.
TracedGradients leaf_gradients(Problem& problem, const std::vector<Batch>& parts,
                               const std::vector<Tensor>& wrt, optim::StateStore& state,
                               LeafCopies& copies);

// The sums over the leaves of all ranks of tensors that each leaf of this rank has; an empty
// tensor stays empty. `paths` name them in errors of collectives.
Vectors leaf_sums(const std::vector<Vectors>& own, const LeafCopies& copies,
                  const std::vector<std::string>& paths);

}  // namespace ebb::mlo
