// The loss and gradients of a level whose batches are divided into leaves, on one rank or on
// several (ebb/train/ranks.h). Every sum over leaves is one value of all ranks and can be
// differentiated again (train/leaf_copies.h).
#pragma once

#include "mlo/level_step.h"

namespace ebb::mlo {

// Calls traced_output for each leaf of this rank's part of a batch; a leaf reads its own copies of
// variables.
std::vector<StepOutput> traced_leaves(Problem& problem, const Batch& part, LeafCopies& copies);

// traced_gradients over the leaves of all ranks. The parts of an update are summed within each leaf
// before the leaves are summed, so that a gradient is exchanged once per update.
TracedGradients leaf_gradients(Problem& problem, const std::vector<Batch>& parts,
                               const std::vector<Tensor>& wrt, optim::StateStore& state,
                               LeafCopies& copies);

// Sums over the leaves of all ranks; `own` has the tensors of each leaf of this rank. An empty
// tensor stays empty. `paths` name the tensors in errors of collectives.
Vectors leaf_sums(const std::vector<Vectors>& own, const LeafCopies& copies,
                  const std::vector<std::string>& paths);

}  // namespace ebb::mlo
