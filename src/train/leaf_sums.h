// Sums over the leaves of a batch, in the order of one tree, on one rank or on several
// (ebb/train/ranks.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ebb/tensor.h"
#include "ebb/train/ranks.h"

namespace ebb {

// Tensors that are summed leaf by leaf, such as the gradients of all parameters. Sums of leaves are
// added as soon as the tree allows, so that few are kept. An empty tensor stays empty.
//
// A rank sums whole blocks, which are exchanged at the end. Where leaves go round the ranks
// (LeafBlocks::round), the leaves that all ranks have computed at the same place of their programs
// are exchanged at once: each complete subtree among them is a sum of its own.
class LeafSums {
 public:
  enum class Result : bool {
    whole,  // every rank gets the sum
    range,  // a rank gets its range of the flattened sum; with one rank the whole
  };
  // `paths` name the tensors in errors of collectives.
  LeafSums(const RankOptions& options, const LeafBlocks& blocks, Result result,
           std::vector<std::string> paths)
      : options_(options), blocks_(blocks), result_(result), paths_(std::move(paths)) {}

  // Adds the next leaf of this rank.
  void add(std::vector<Tensor> leaf);
  // Calls `mark` with every sum that is made.
  std::function<void(const Tensor&)> mark = {};

  // The sums over all leaves of all ranks, once this rank's leaves have been added.
  std::vector<Tensor> totals() const;

 private:
  struct Partial {
    std::int64_t leaves;
    std::vector<Tensor> sums;
  };
  void add_to_block(std::vector<Tensor> leaf);
  void add_round(const std::vector<Tensor>& leaf);
  void merge_last();
  void merge_equal();
  void merge_all();
  // The sum over ranks of blocks that every rank has, as many as there are tensors in `own`.
  Tensor over_ranks(const std::vector<Tensor>& own, std::size_t i, std::int64_t blocks,
                    std::int64_t first) const;

  RankOptions options_;
  LeafBlocks blocks_;
  Result result_;
  std::vector<std::string> paths_;
  std::vector<Partial> open_;              // of the block, or the tree, that is being summed
  std::vector<std::vector<Tensor>> done_;  // whole blocks
  std::int64_t added_ = 0;                 // leaves of this rank
};

// The global norm of gradients whose bits depend neither on the number of ranks nor on what is
// sharded: squares are summed over pieces of fixed size, then over the pieces in order. If the
// options shard anything, the gradients are ranges of tensors of these shapes.
Tensor reproducible_norm(const std::vector<Tensor>& gradients, const std::vector<Shape>& shapes,
                         const RankOptions& options);

}  // namespace ebb
