#include "train/leaf_sums.h"

#include <algorithm>

#include "ebb/node.h"
#include "ebb/ops.h"
#include "ops/collective/collective.h"

namespace ebb {

void LeafSums::add(std::vector<Tensor> leaf) {
  if (blocks_.round)
    add_round(leaf);
  else
    add_to_block(std::move(leaf));
  ++added_;
}

// The tree of n leaves divides at the largest power of two below n. So sums of equal numbers of
// leaves are added at once, and the remaining ones at the end of a block, starting from its end.
void LeafSums::add_to_block(std::vector<Tensor> leaf) {
  open_.push_back({1, std::move(leaf)});
  merge_equal();
  if ((added_ + 1) % blocks_.block != 0) return;
  merge_all();
  done_.push_back(std::move(open_.back().sums));
  open_.clear();
}

// The ranks' leaves at one place are consecutive leaves of the tree. They are cut into the largest
// complete subtrees: one if the number of ranks is a power of two.
void LeafSums::add_round(const std::vector<Tensor>& leaf) {
  const std::int64_t begin = added_ * blocks_.ranks,
                     end = std::min(begin + blocks_.ranks, blocks_.leaves);
  for (std::int64_t at = begin, size = 0; at < end; at += size) {
    for (size = 1; at % (2 * size) == 0 && at + 2 * size <= end;) size *= 2;
    std::vector<Tensor> sums;
    for (std::size_t i = 0; i < leaf.size(); ++i)
      sums.push_back(leaf[i] ? over_ranks({leaf[i]}, i, size, at - begin) : Tensor{});
    open_.push_back({size, std::move(sums)});
    merge_equal();
  }
  if (end == blocks_.leaves) merge_all();
}

void LeafSums::merge_last() {
  const Partial last = std::move(open_.back());
  open_.pop_back();
  Partial& before = open_.back();
  before.leaves += last.leaves;
  for (std::size_t i = 0; i < last.sums.size(); ++i) {
    Tensor& sum = before.sums[i];
    sum = sum && last.sums[i] ? sum + last.sums[i] : Tensor{};
    if (mark && sum) mark(sum);
  }
}

void LeafSums::merge_equal() {
  while (open_.size() > 1 && open_[open_.size() - 2].leaves == open_.back().leaves) merge_last();
}

void LeafSums::merge_all() {
  while (open_.size() > 1) merge_last();
}

std::vector<Tensor> LeafSums::totals() const {
  if (blocks_.round) return open_.front().sums;
  std::vector<Tensor> totals;
  for (std::size_t i = 0; i < done_.front().size(); ++i) {
    std::vector<Tensor> own;
    for (const std::vector<Tensor>& block : done_) own.push_back(block[i]);
    totals.push_back(options_.count == 1 || !own.front() ? own.front()
                                                         : over_ranks(own, i, blocks_.blocks, 0));
  }
  return totals;
}

Tensor LeafSums::over_ranks(const std::vector<Tensor>& own, std::size_t i, std::int64_t blocks,
                            std::int64_t first) const {
  const PathScope scope(paths_[i], PathScope::Kind::absolute);
  const auto reduced = result_ == Result::whole ? all_reduce : reduce_scatter;
  const Tensor sum = reduced(own, options_.count, blocks, first, options_.reduce);
  if (mark) mark(sum);
  return sum;
}

namespace {

// The number of elements whose squares are summed together, for any number of ranks.
constexpr std::int64_t norm_piece = 64;
static_assert(range_alignment % norm_piece == 0);

// The sums of squares of pieces; the last piece is padded with zeros.
Tensor squares_of_pieces(const Tensor& gradient) {
  const std::int64_t elements = gradient.shape().elements(),
                     pieces = (elements + norm_piece - 1) / norm_piece;
  Tensor flat = cast(reshape(gradient, {elements}), f32);
  if (pieces * norm_piece > elements) flat = pad(flat, {0}, {pieces * norm_piece - elements}, 0.0);
  return sum(square(reshape(flat, {pieces, norm_piece})), {1});
}

}  // namespace

Tensor reproducible_norm(const std::vector<Tensor>& gradients, const std::vector<Shape>& shapes,
                         const RankOptions& options) {
  std::vector<Tensor> squares;
  for (const Tensor& gradient : gradients) squares.push_back(squares_of_pieces(gradient));
  if (!options.shards(Shard::state)) return sqrt(sum(concat(squares, 0)));
  const PathScope scope("gradient_norm", PathScope::Kind::absolute);
  // All ranks' pieces are exchanged at once, and then added in the order of whole tensors.
  const Tensor own = concat(squares, 0);
  const std::int64_t count = own.shape()[0];
  const Tensor all = all_gather(own, {options.count, count}, options.count);
  std::vector<Tensor> whole;
  std::int64_t at = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const std::int64_t pieces = squares[i].shape()[0],
                       real = (shapes[i].elements() + norm_piece - 1) / norm_piece;
    const Tensor ranks = reshape(slice(all, 1, at, at + pieces), {options.count * pieces});
    whole.push_back(slice(ranks, 0, 0, real));
    at += pieces;
  }
  return sqrt(sum(concat(whole, 0)));
}

}  // namespace ebb
