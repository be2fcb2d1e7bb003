#include "prune/block_graphs.h"

#include <fmt/core.h>

#include <algorithm>

#include "ebb/error.h"
#include "ebb/ops.h"
#include "passes/rewrite.h"

namespace ebb::prune {
namespace {

// The graph with `input` in the place of `cut`.
Graph cut_at(const Graph& graph, const Tensor& cut, const Tensor& input) {
  Rewriter rewriter;
  for (const auto& node : topological_order(graph)) {
    if (node == cut.node()) {
      std::vector<Tensor> values;
      for (int o = 0; o < static_cast<int>(node->outputs().size()); ++o)
        values.push_back(o == cut.output() ? input : Tensor(node, o));
      rewriter.replace(*node, std::move(values));
    } else if (std::any_of(node->inputs().begin(), node->inputs().end(),
                           [&](const Tensor& t) { return rewriter[t] != t; })) {
      rewriter.replace(*node, rewriter.copy(*node));
    }
  }
  Graph result = rewriter.apply(graph);
  result.inputs.insert(result.inputs.begin(), input);
  return result;
}

Graph cut_at(const Graph& graph, const Tensor& cut) {
  return cut_at(graph, cut, input(cut.type(), "block", cut.device()));
}

}  // namespace

BlockGraphs::BlockGraphs(const Structure& structure) : s_(structure) {
  if (s_.products.empty())
    throw ValueError("prune: the model has no matrices in blocks, which are those that are pruned");
  for (std::size_t b = 1; b < s_.blocks.size(); ++b)
    if (s_.blocks[b].entry != s_.blocks[b - 1].exit)
      throw ValueError(fmt::format("prune: block \"{}\" does not read what \"{}\" gives",
                                   s_.blocks[b].path, s_.blocks[b - 1].path));
  for (std::size_t i = 0; i < s_.variables.size(); ++i)
    index_.emplace(s_.variables[i].variable.node()->id(), i);
}

Graph BlockGraphs::entry() const {
  Graph graph;
  graph.inputs = s_.inputs;
  graph.outputs = {s_.blocks.front().entry};
  return graph;
}

Graph BlockGraphs::pass(std::size_t block) const {
  Graph graph;
  graph.outputs = {s_.blocks[block].exit};
  return cut_at(graph, s_.blocks[block].entry);
}

Graph BlockGraphs::loss() const {
  Graph graph;
  graph.inputs = s_.inputs;
  graph.outputs = {cast(s_.loss, f64)};
  return cut_at(graph, s_.blocks.back().exit);
}

std::vector<Tensor> BlockGraphs::inputs_of(std::size_t block) const {
  std::vector<Tensor> inputs;
  for (const Product& p : s_.products)
    if (p.block == block && std::find(inputs.begin(), inputs.end(), p.input) == inputs.end())
      inputs.push_back(p.input);
  return inputs;
}

SumsGraph BlockGraphs::sums(std::size_t block, const std::vector<Tensor>& inputs,
                            InputSum kind) const {
  SumsGraph result;
  Graph graph;
  for (const Tensor& value : inputs) {
    const Tensor x = cast(value, f32);
    const Tensor part =
        kind == InputSum::squares ? sum_squares(x, {0}) : matmul(x, x, Transpose::yes);
    result.sums.emplace_back(zeros(part.shape(), f64, part.device()));
    graph.updates.push_back({result.sums.back(), result.sums.back() + cast(part, f64)});
  }
  result.graph = cut_at(graph, s_.blocks[block].entry);
  return result;
}

std::vector<std::size_t> BlockGraphs::variables_in(const Graph& graph) const {
  std::vector<std::size_t> found;
  for (const auto& node : topological_order(graph))
    if (const auto at = index_.find(node->id()); at != index_.end()) found.push_back(at->second);
  return found;
}

}  // namespace ebb::prune
