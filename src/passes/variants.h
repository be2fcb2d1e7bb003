// Variants of ops (ebb/op.h) in a graph: lists them, and rewrites the graph to use chosen ones.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ebb/graph.h"

namespace ebb {

// For an op's name, the variant that all calls of the op use.
using VariantChoice = std::map<std::string, std::string>;

// Throws a ValueError if a name is not that of an op with variants.
void check_names(const VariantChoice& choice);

// For each op of the graph with several variants, those that give the same bits, fastest first: the
// planner may choose among them by itself.
std::map<std::string, std::vector<std::string>> variants_to_choose_from(const Graph& graph);

// The graph with these variants; calls of other ops are not changed. Throws a ValueError if a call
// does not have the variant chosen for its op.
Graph with_variants(const Graph& graph, const VariantChoice& choice);

}  // namespace ebb
