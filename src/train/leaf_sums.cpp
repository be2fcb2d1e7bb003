#include "train/leaf_sums.h"

#include "ebb/node.h"
#include "ebb/ops.h"
#include "ops/collective/collective.h"

namespace ebb {

std::vector<Tensor> LeafSums::plus(const std::vector<Tensor>& a,
                                   const std::vector<Tensor>& b) const {
  std::vector<Tensor> sums;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sums.push_back(a[i] && b[i] ? a[i] + b[i] : Tensor{});
    if (mark && sums.back()) mark(sums.back());
  }
  return sums;
}

// The tree of n leaves divides at the largest power of two below n. So sums of as many leaves are
// added at once, and what is left at the end of a block from its end.
void LeafSums::add(std::vector<Tensor> leaf) {
  open_.push_back({1, std::move(leaf)});
  ++in_block_;
  const auto merge = [&] {
    Partial last = std::move(open_.back());
    open_.pop_back();
    open_.back().sums = plus(open_.back().sums, last.sums);
    open_.back().leaves += last.leaves;
  };
  while (open_.size() > 1 && open_[open_.size() - 2].leaves == open_.back().leaves) merge();
  if (in_block_ < blocks_.block) return;
  while (open_.size() > 1) merge();
  done_.push_back(std::move(open_.back().sums));
  open_.clear();
  in_block_ = 0;
}

std::vector<Tensor> LeafSums::blocks_of(std::size_t i) const {
  std::vector<Tensor> all;
  for (const std::vector<Tensor>& block : done_) all.push_back(block[i]);
  return all;
}

Tensor over_ranks(const std::vector<Tensor>& own_blocks, const RankOptions& options,
                  const LeafBlocks& blocks) {
  if (options.count == 1 || !own_blocks.front()) return own_blocks.front();
  return all_reduce(own_blocks, options.count, blocks.blocks, options.reduce);
}

Tensor range_over_ranks(const std::vector<Tensor>& own_blocks, const RankOptions& options,
                        const LeafBlocks& blocks) {
  if (!own_blocks.front()) return {};
  return reduce_scatter(own_blocks, options.count, blocks.blocks, options.reduce);
}

namespace {

// The sums of squares of pieces of `range_alignment` elements; the last is filled up with zeros.
Tensor squares_of_pieces(const Tensor& gradient) {
  const std::int64_t elements = gradient.shape().elements(),
                     pieces = (elements + range_alignment - 1) / range_alignment;
  Tensor flat = cast(reshape(gradient, {elements}), f32);
  if (pieces * range_alignment > elements)
    flat = pad(flat, {0}, {pieces * range_alignment - elements}, 0.0);
  return sum(square(reshape(flat, {pieces, range_alignment})), {1});
}

}  // namespace

Tensor reproducible_norm(const std::vector<Tensor>& gradients, const std::vector<Shape>& shapes,
                         const RankOptions& options) {
  std::vector<Tensor> squares;
  for (const Tensor& gradient : gradients) squares.push_back(squares_of_pieces(gradient));
  if (options.shard == Shard::nothing) return sqrt(sum(concat(squares, 0)));
  const PathScope scope("gradient_norm", PathScope::Kind::absolute);
  // All ranks' pieces in one exchange, then in the order of whole tensors.
  const Tensor own = concat(squares, 0);
  const std::int64_t count = own.shape()[0];
  const Tensor all = all_gather(own, {options.count, count}, options.count);
  std::vector<Tensor> whole;
  std::int64_t at = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const std::int64_t pieces = squares[i].shape()[0],
                       real = (shapes[i].elements() + range_alignment - 1) / range_alignment;
    const Tensor ranks = reshape(slice(all, 1, at, at + pieces), {options.count * pieces});
    whole.push_back(slice(ranks, 0, 0, real));
    at += pieces;
  }
  return sqrt(sum(concat(whole, 0)));
}

}  // namespace ebb
