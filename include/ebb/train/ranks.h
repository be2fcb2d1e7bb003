// A training step that several ranks (processes, or threads) take together, each with a part of the
// batch.
//
// The global batch is divided into `leaves` micro-batches of equal size, whatever the number of
// ranks. Losses and gradients are summed over the leaves in one binary tree: a sum of n leaves is
// the sum of the first p and the sum of the others, where p is the largest power of two below n. A
// rank sums aligned blocks of leaves, complete subtrees; blocks are exchanged and added in the
// order of the tree. So the number of ranks changes no bit of a step.
#pragma once

#include <cstdint>

#include "ebb/communicator.h"

namespace ebb {

// What is divided among the ranks, as ranges of each flattened parameter.
enum class Shard : std::uint8_t {
  nothing,    // every rank has all weights, gradients and optimizer state
  state,      // a rank has a range of the optimizer's state, updates that range of the weights, and
              // receives the others; of the summed gradients it receives its range
  gradients,  // also, gradients are summed over the ranks after every leaf: of the sums over
              // leaves, a rank keeps its range
  parameters,  // also, a rank has its range of the weights between the instructions that read
               // them, and gathers the others before these
};

struct RankOptions {
  std::int64_t leaves = 0;  // 0: TrainOptions::accumulate decides, which adds in sequence
  int count = 1;            // ranks
  int rank = 0;             // this one
  Shard shard = Shard::nothing;
  Reduce reduce = Reduce::exact;

  bool any() const { return leaves > 0; }
  bool shards(Shard stage) const { return count > 1 && shard >= stage; }
};

// Which leaves a rank computes. All ranks run the same program: a rank whose last blocks lie beyond
// the last leaf computes other leaves in their place, and their results are not used.
//
// With Shard::gradients and more than one leaf per rank, leaves are dealt in turn: rank r has the
// leaves r, r + ranks, and so on. The leaves that all ranks together have computed at any time are
// then the first leaves of the tree, so their gradients can be summed and freed.
struct LeafBlocks {
  std::int64_t leaves = 1;  // of the global batch
  std::int64_t block = 1;   // leaves of a block, a power of two; with one rank all leaves
  std::int64_t blocks = 1;  // of the global batch
  std::int64_t own = 1;     // blocks of one rank
  std::int64_t ranks = 1;
  bool round = false;  // leaves are dealt to the ranks in turn; blocks are single leaves

  // Divides leaves so that the busiest rank has as few as possible, in as few blocks as possible.
  // An error if there are more ranks than leaves.
  static LeafBlocks of(const RankOptions& options);

  std::int64_t per_rank() const { return own * block; }
  // The leaf that a rank computes at this place of its program, from 0 to per_rank().
  std::int64_t leaf(int rank, std::int64_t place) const;
  // The rank that computes a leaf, and the place of its program where it does.
  struct Seat {
    std::int64_t rank, place;
  };
  Seat seat(std::int64_t leaf) const;
};

}  // namespace ebb
