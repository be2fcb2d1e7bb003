#include "ebb/train/ranks.h"

#include <fmt/core.h>

#include "ebb/error.h"

namespace ebb {

LeafBlocks LeafBlocks::of(const RankOptions& options) {
  const std::int64_t leaves = options.leaves, ranks = options.count;
  if (leaves < 1) throw ValueError(fmt::format("a batch has at least 1 leaf, but {} came", leaves));
  if (ranks < 1 || options.rank < 0 || options.rank >= ranks)
    throw ValueError(fmt::format("rank {} of {}: ranks are counted from 0", options.rank, ranks));
  if (ranks > leaves)
    throw ValueError(fmt::format(
        "{} ranks share {} leaves of a batch: there must be a leaf for each rank", ranks, leaves));
  if (ranks == 1) return {leaves, leaves, 1, 1};
  if (options.shards(Shard::gradients) && leaves > ranks)
    return {leaves, 1, leaves, (leaves + ranks - 1) / ranks, ranks, true};
  // Every block is a complete subtree: a power of two that divides the leaves.
  LeafBlocks best;
  for (std::int64_t block = 1; leaves % block == 0; block *= 2) {
    LeafBlocks next{leaves, block, leaves / block, 0, ranks};
    next.own = (next.blocks + ranks - 1) / ranks;
    if (block == 1 || next.per_rank() <= best.per_rank()) best = next;
  }
  return best;
}

std::int64_t LeafBlocks::leaf(int rank, std::int64_t place) const {
  return (round ? place * ranks + rank : rank * per_rank() + place) % leaves;
}

LeafBlocks::Seat LeafBlocks::seat(std::int64_t leaf) const {
  return round ? Seat{leaf % ranks, leaf / ranks} : Seat{leaf / per_rank(), leaf % per_rank()};
}

}  // namespace ebb
