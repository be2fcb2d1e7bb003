// Variants of ops (ebb/op.h) in a graph: which there are, and the graph with some chosen.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ebb/graph.h"

namespace ebb {

// The variant that every call of an op takes, by the op's name.
using VariantChoice = std::map<std::string, std::string>;

// A ValueError where a name is of no op, or of an op that has no variants.
void check_names(const VariantChoice& choice);

// For each op of the graph that has several, those that give the same bits, the fastest first: what
// a planner may choose among by itself.
std::map<std::string, std::vector<std::string>> variants_to_choose_from(const Graph& graph);

// The graph with these variants; calls of other ops stay as they are. A ValueError where a call
// does not have the variant chosen for its op.
Graph with_variants(const Graph& graph, const VariantChoice& choice);

}  // namespace ebb
