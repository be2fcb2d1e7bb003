#include "prune/blocks.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "ops/matmul/matmul.h"

namespace ebb::prune {
namespace {

using VariableIndex = std::unordered_map<const Node*, std::size_t>;

// Nodes that depend on the batch.
std::unordered_set<const Node*> depending_on_inputs(
    const std::vector<std::shared_ptr<Node>>& nodes) {
  std::unordered_set<const Node*> result;
  for (const auto& node : nodes)
    if (node->op().name() == "input" ||
        std::any_of(node->inputs().begin(), node->inputs().end(),
                    [&](const Tensor& t) { return result.contains(t.node().get()); }))
      result.insert(node.get());
  return result;
}

// Whether `from` is `to` plus other terms. A relu after the sum is allowed, because `to` has been
// through a relu itself.
bool adds_to(const Tensor& from, const Tensor& to) {
  if (from == to) return true;
  const std::string_view op = from.node()->op().name();
  const auto& inputs = from.node()->inputs();
  if (op == "relu" && to.node()->op().name() == "relu") return adds_to(inputs[0], to);
  if (op != "add") return false;
  return std::any_of(inputs.begin(), inputs.end(),
                     [&](const Tensor& t) { return t.type() == to.type() && adds_to(t, to); });
}

struct BlockNodes {
  std::vector<std::string_view> paths;  // of its nodes
  std::set<std::size_t> variables;
  std::set<std::pair<std::uint64_t, int>> seen;  // entries and exits, by node and output
  std::vector<Tensor> entries, exits;
};

void add_once(BlockNodes& range, std::vector<Tensor>& list, const Tensor& value) {
  if (range.seen.insert({value.node()->id(), value.output()}).second) list.push_back(value);
}

}  // namespace

std::string common_path(const std::vector<std::string_view>& paths) {
  if (paths.empty()) return {};
  std::string_view common = paths.front();
  const auto holds = [&](std::string_view path) {
    return common.empty() || path == common ||
           (path.starts_with(common) && path[common.size()] == '.');
  };
  for (const std::string_view path : paths)
    while (!holds(path)) {
      const std::size_t dot = common.rfind('.');
      common = common.substr(0, dot == std::string_view::npos ? 0 : dot);
    }
  return std::string(common);
}

void find_blocks(const std::vector<std::shared_ptr<Node>>& nodes, Structure& structure) {
  VariableIndex index;
  for (std::size_t i = 0; i < structure.variables.size(); ++i)
    index.emplace(structure.variables[i].variable.node().get(), i);
  const auto dynamic = depending_on_inputs(nodes);
  std::map<std::uint32_t, BlockNodes>
      ranges;  // by the number of the block, which grows as they run
  for (const auto& node : nodes) {
    const std::uint32_t own = node->marks().block;
    if (own != 0) ranges[own].paths.push_back(node->path());
    for (const Tensor& input : node->inputs()) {
      const std::uint32_t maker = input.node()->marks().block;
      if (const auto found = index.find(input.node().get()); found != index.end() && own != 0)
        ranges[own].variables.insert(found->second);
      if (!dynamic.contains(input.node().get()) || maker == own) continue;
      if (own != 0) add_once(ranges[own], ranges[own].entries, input);
      if (maker != 0) add_once(ranges[maker], ranges[maker].exits, input);
    }
  }
  std::map<std::uint32_t, std::size_t> place;
  for (const auto& [number, range] : ranges) {
    if (range.entries.size() != 1 || range.exits.size() != 1 || range.variables.empty()) continue;
    Block block{.entry = range.entries.front(), .exit = range.exits.front()};
    block.variables.assign(range.variables.begin(), range.variables.end());
    block.path = common_path(range.paths);
    block.removable = block.entry.type() == block.exit.type() && adds_to(block.exit, block.entry);
    place[number] = structure.blocks.size();
    structure.blocks.push_back(std::move(block));
  }
  for (const auto& node : nodes) {
    const auto block = place.find(node->marks().block);
    if (node->op().name() != "matmul" || block == place.end()) continue;
    const auto found = index.find(node->inputs()[1].node().get());
    if (found == index.end() || node->inputs()[1].rank() != 2 || node->inputs()[0].rank() != 2)
      continue;
    const auto& attributes = node->attributes().as<MatmulAttributes>();
    if (attributes.transpose_a) continue;
    structure.products.push_back({.variable = found->second,
                                  .block = block->second,
                                  .input_axis = attributes.transpose_b ? 1 : 0,
                                  .input = node->inputs()[0]});
  }
}

}  // namespace ebb::prune
