// Sums over the leaves of a batch that can be differentiated to any order, with the same bits on
// any number of ranks.
//
// Tensors that all leaves read, such as parameters, are given to each leaf of this rank as a copy:
// the tensor itself under another name. The gradient of the whole tensor is the sum of its copies'
// gradients over the leaves of all ranks, and the gradient of such a sum is a copy for each leaf:
// the two are each other's derivative. Every sum is in the order of the tree (LeafSums). In a
// finished graph copies are replaced by their tensors, and sums by additions and collectives.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

#include "ebb/graph.h"
#include "ebb/replace.h"
#include "ebb/tensor.h"
#include "ebb/train/ranks.h"

namespace ebb {

class LeafCopies {
 public:
  explicit LeafCopies(const RankOptions& options)
      : options_(options), blocks_(LeafBlocks::of(options)) {}

  const RankOptions& options() const { return options_; }
  const LeafBlocks& blocks() const { return blocks_; }
  std::size_t places() const { return static_cast<std::size_t>(blocks_.per_rank()); }

  // The copies for the leaf at this place of the rank's program.
  std::vector<Tensor> at(std::size_t place, const std::vector<Tensor>& whole);
  // `values`, which one leaf computes, rewritten to read that leaf's copies instead of the
  // floating-point variables; those in `kept` are not replaced.
  std::vector<Tensor> reading(std::size_t place, const std::vector<Tensor>& values,
                              const std::vector<Variable>& kept = {});

  // A number for each batch that is traced, from 0: leaves of different batches draw different
  // random numbers.
  std::int64_t next_batch() { return batches_++; }
  // The sequence of random numbers of the leaf at this place, whatever rank it is on.
  std::uint64_t draws(std::int64_t batch, std::size_t place) const {
    return static_cast<std::uint64_t>(
        batch * blocks_.leaves + blocks_.leaf(options_.rank, static_cast<std::int64_t>(place)));
  }

 private:
  Tensor copy(std::size_t place, const Tensor& whole);

  RankOptions options_;
  LeafBlocks blocks_;
  std::unordered_map<Tensor, std::vector<Tensor>> copies_;
  std::int64_t batches_ = 0;
};

// The sum over the leaves of all ranks of a tensor that each leaf of this rank has; `path` names it
// in errors of collectives.
Tensor sum_over_leaves(const std::vector<Tensor>& own, const RankOptions& options,
                       const std::string& path);

// A finished graph without copies and sums over leaves, which have no kernels. A sum is added up as
// its leaves are computed, so that few of them are kept.
Graph without_leaves(const Graph& graph);

}  // namespace ebb
