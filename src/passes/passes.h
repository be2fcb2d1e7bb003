// Rewrites of a step's graph. Each is pure: a graph in, a graph out.
#pragma once

#include "ebb/device.h"
#include "ebb/graph.h"

namespace ebb {

// Joins elementwise ops with a single reader into that reader, another elementwise op or a
// reduction, and copies generators (constants, masks, random numbers) into all of theirs. Changes
// no bit of any result.
Graph fuse_pointwise(const Graph& graph);

// Joins a linear_cross_entropy with its backward op where the gradient of the losses does not
// depend on them. The joint op takes its first variant.
Graph join_loss(const Graph& graph);

// Joins sums and slopes of activations with the product or the norm's gradient before them. Norms:
// changes no bit. Products, on CUDA alone: they are rounded after what is joined, not before it
// too.
Graph join_epilogues(const Graph& graph);

// Has the gradient of a norm sum its rows where that is a bias's gradient, on CUDA alone. The sums
// are of the same numbers in another order.
Graph join_sums(const Graph& graph);

// Lets attention's backward op write the gradients of q, k and v side by side where nobody reads
// them but a concat that would copy them so. Changes no bit.
Graph pack_gradients(const Graph& graph);

// Has batch norms do the relu that follows them, and their gradients what relu's gradient does.
// Changes no bit.
Graph join_relu(const Graph& graph);

// Puts a copy before every kernel and every view that cannot take its input as it lies, and gives
// outputs and updates buffers of their own. Afterwards the planner needs no copies.
Graph insert_copies(const Graph& graph);

// Joins small updates and small calls with one common reader into groups that one kernel does, on
// devices of the kind `where`. After `insert_copies`. Changes no bit; a group can add 1 MiB to a
// peak.
Graph group_small(const Graph& graph, Device::Kind where);

}  // namespace ebb
