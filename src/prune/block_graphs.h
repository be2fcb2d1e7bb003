// The programs that a walk through a model's blocks runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ebb/graph.h"
#include "ebb/prune/structure.h"

namespace ebb::prune {

// What a method reads of the inputs x of a layer, over N rows of data.
enum class InputSum : std::uint8_t {
  none,
  squares,   // ‖x_j‖² of each input
  products,  // 2 / N Σ x xᵀ, inputs × inputs
};

// Sums of a batch are added to these variables, in float64.
struct SumsGraph {
  Graph graph;
  std::vector<Variable> sums;  // one for each input of a layer
};

class BlockGraphs {
 public:
  // A model without matrices in blocks, or whose blocks are no chain, is a ValueError.
  explicit BlockGraphs(const Structure& structure);

  Graph entry() const;                                     // batch → what enters the first block
  Graph pass(std::size_t block) const;                     // what enters it → what leaves it
  Graph loss() const;                                      // (what leaves the last, batch) → loss
  std::vector<Tensor> inputs_of(std::size_t block) const;  // of its products, each once
  SumsGraph sums(std::size_t block, const std::vector<Tensor>& inputs, InputSum kind) const;

  // The model's variables that a graph reads, by their numbers in the structure.
  std::vector<std::size_t> variables_in(const Graph& graph) const;
  bool is_variable(std::uint64_t node) const { return index_.contains(node); }

 private:
  const Structure& s_;
  std::unordered_map<std::uint64_t, std::size_t> index_;  // by Node::id
};

}  // namespace ebb::prune
