// Sums over the leaves of a batch, in the order of one tree, on one rank or on several
// (ebb/train/ranks.h).
#pragma once

#include <functional>
#include <vector>

#include "ebb/tensor.h"
#include "ebb/train/ranks.h"

namespace ebb {

// Tensors that are summed leaf by leaf, such as the gradients of all parameters. Sums of leaves are
// added as soon as the tree allows, so that few are kept. An empty tensor stays empty.
class LeafSums {
 public:
  explicit LeafSums(const LeafBlocks& blocks) : blocks_(blocks) {}

  // Adds the next leaf of this rank.
  void add(std::vector<Tensor> leaf);
  // Calls `mark` with every sum that is made.
  std::function<void(const Tensor&)> mark = {};

  // Tensor i of all blocks of this rank: one with one rank.
  std::vector<Tensor> blocks_of(std::size_t i) const;
  std::size_t count() const { return done_.empty() ? 0 : done_.front().size(); }

 private:
  struct Partial {
    std::int64_t leaves;
    std::vector<Tensor> sums;
  };
  std::vector<Tensor> plus(const std::vector<Tensor>& a, const std::vector<Tensor>& b) const;

  LeafBlocks blocks_;
  std::vector<Partial> open_;              // of the block that is being summed
  std::vector<std::vector<Tensor>> done_;  // whole blocks
  std::int64_t in_block_ = 0;              // leaves
};

// The sum over all ranks, which every rank gets.
Tensor over_ranks(const std::vector<Tensor>& own_blocks, const RankOptions& options,
                  const LeafBlocks& blocks);
// This rank's range of it.
Tensor range_over_ranks(const std::vector<Tensor>& own_blocks, const RankOptions& options,
                        const LeafBlocks& blocks);

// The global norm of gradients whose bits depend neither on the number of ranks nor on what is
// sharded: squares are summed over pieces of fixed size, then over the pieces in order. With
// Shard::state the gradients are ranges of tensors of these shapes.
Tensor reproducible_norm(const std::vector<Tensor>& gradients, const std::vector<Shape>& shapes,
                         const RankOptions& options);

}  // namespace ebb
