// Rewrites of a graph. Each is a pure function from graph to graph.
#pragma once

#include "ebb/activation_bits.h"
#include "ebb/device.h"
#include "ebb/graph.h"

namespace ebb {

// Fuses an elementwise op that has a single reader into that reader, if it is an elementwise op or
// a reduction, and generators (constants, masks, random numbers) into all of their readers. Results
// stay the same to the bit.
Graph fuse_pointwise(const Graph& graph);

// Replaces products in fp8 by the encoding of their factors, once for all products that read one,
// and products of codes. Same bits as encoding for every product.
Graph share_codes(const Graph& graph);

// Lets backward read activations from 8-bit codes (ebb/activation_bits.h). Changes gradients.
Graph code_activations(const Graph& graph);
CodedActivations told_by_code_activations(const Graph& graph);

// Merges a linear_cross_entropy with its backward op if the gradient of the losses does not depend
// on the losses. The merged op uses its first variant.
Graph join_loss(const Graph& graph);

// Makes additions and activation gradients epilogues of the norm gradient or matrix product before
// them. Norm gradients: same bits. Products, on CUDA only: rounded once, after the epilogue,
// instead of before and after it.
Graph join_epilogues(const Graph& graph);

// On CUDA only: the gradient of a norm also sums its rows where that sum is a bias's gradient. The
// same numbers are added in another order.
Graph join_sums(const Graph& graph);

// Lets attention's backward op write the gradients of q, k and v into one packed tensor if their
// only reader is a concat into that tensor. Same bits.
Graph pack_gradients(const Graph& graph);

// Fuses the relu after a batch norm into it, and relu's gradient into the batch norm's gradient.
// Same bits.
Graph join_relu(const Graph& graph);

// Inserts a contiguous copy before every kernel and view that cannot take its input's layout, and
// gives outputs and updates buffers of their own. The planner then needs no further copies.
Graph insert_copies(const Graph& graph);

// Groups small updates, and small calls with the same single reader, so that one kernel runs them,
// on devices of the kind `where`. Must run after `insert_copies`. Same bits; a group can add 1 MiB
// to peak memory.
Graph group_small(const Graph& graph, Device::Kind where);

}  // namespace ebb
