// Rewrites of a step's graph. Each is pure: a graph in, a graph out.
#pragma once

#include "ebb/graph.h"

namespace ebb {

// Joins elementwise ops with a single reader into that reader, another elementwise op or a
// reduction, and copies generators (constants, masks, random numbers) into all of theirs. Changes
// no bit of any result.
Graph fuse_pointwise(const Graph& graph);

// Joins a linear_cross_entropy with its backward op where the gradient of the losses does not
// depend on them. `walks` over the logits, 1 or 2, are those of losses on CUDA, where one takes
// more memory and less time; elsewhere it is as the kernels do it.
Graph join_loss(const Graph& graph, int walks);

// Joins sums and slopes of activations with the product or the norm's gradient before them. Norms:
// changes no bit. Products, on CUDA alone: they are rounded after what is joined, not before it
// too.
Graph join_epilogues(const Graph& graph);

// Has the gradient of a norm sum its rows where that is a bias's gradient. The sums are of the same
// numbers in another order.
Graph join_sums(const Graph& graph);

// Puts a copy before every kernel and every view that cannot take its input as it lies, and gives
// outputs and updates buffers of their own. Afterwards the planner needs no copies.
Graph insert_copies(const Graph& graph);

}  // namespace ebb
