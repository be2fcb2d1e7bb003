#include "train/leaf_copies.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <unordered_set>

#include "ebb/node.h"
#include "ebb/op.h"
#include "ops/leaf/leaf.h"
#include "passes/rewrite.h"
#include "train/leaf_sums.h"

namespace ebb {
namespace {

struct LeafTreeAttributes {
  std::int64_t leaves = 1, ranks = 1;
  Reduce reduce = Reduce::exact;
  bool operator==(const LeafTreeAttributes&) const = default;
  void visit(auto&& field) {
    field("leaves", leaves);
    field("ranks", ranks);
    constexpr std::string_view names[] = {"exact", "fast"};
    field.choice("reduce", reduce, names);
  }

  static LeafTreeAttributes of(const RankOptions& options) {
    return {options.leaves, options.count, options.reduce};
  }
  RankOptions options() const {
    return {.leaves = leaves, .count = static_cast<int>(ranks), .reduce = reduce};
  }
  std::size_t places() const {
    return static_cast<std::size_t>(LeafBlocks::of(options()).per_rank());
  }
};

const Op& leaf_sum_op();

const Op& leaf_copy_op() {
  static const TypedOp<LeafTreeAttributes> op([] {
    OpSpec<LeafTreeAttributes> spec{.name = "leaf_copy",
                                    .summary = "a tensor once for each leaf of a rank's batch"};
    spec.infer = [](const Call& call, const LeafTreeAttributes& a) {
      return std::vector<TensorType>(a.places(), call.inputs[0]);
    };
    spec.gradient = [](const GradientCall& call, const LeafTreeAttributes& a) {
      std::vector<Tensor> own;
      for (std::size_t place = 0; place < a.places(); ++place)
        own.push_back(call.grad(static_cast<int>(place)));
      return apply(leaf_sum_op(), std::move(own), a);
    };
    return spec;
  }());
  return op;
}

const Op& leaf_sum_op() {
  static const TypedOp<LeafTreeAttributes> op([] {
    OpSpec<LeafTreeAttributes> spec{
        .name = "leaf_sum", .summary = "the sum over the leaves of all ranks, in a fixed order"};
    spec.infer = [](const Call& call, const LeafTreeAttributes& a) {
      if (static_cast<std::size_t>(call.count()) != a.places())
        call.fail_value(fmt::format("a rank has {} leaves, but {} came", a.places(), call.count()));
      for (int i = 1; i < call.count(); ++i)
        if (call.inputs[static_cast<std::size_t>(i)] != call.inputs[0])
          call.fail_shape("all leaves must have one type");
      return std::vector{call.inputs[0]};
    };
    spec.gradient = [](const GradientCall& call, const LeafTreeAttributes& a) {
      return apply(leaf_copy_op(), {call.grad()}, a);
    };
    return spec;
  }());
  return op;
}

// Replaces sums over leaves while a graph is copied node by node.
class OpenSums {
 public:
  OpenSums(const std::vector<std::shared_ptr<Node>>& order, Rewriter& rewriter)
      : rewriter_(rewriter) {
    for (const auto& node : order) {
      if (&node->op() != &leaf_sum_op()) continue;
      const RankOptions options = node->attributes().as<LeafTreeAttributes>().options();
      const auto sums =
          std::make_shared<LeafSums>(options, LeafBlocks::of(options), LeafSums::Result::whole,
                                     std::vector<std::string>{node->path()});
      sums->mark = [category = node->category()](const Tensor& sum) {
        sum.node()->set_category(category);
      };
      const auto open = std::make_shared<Open>(Open{node, sums, 0});
      for (const Tensor& input : node->inputs()) readers_[input.node().get()].push_back(open);
      open_[node.get()] = open;
    }
  }

  // Called after this node has its replacement: adds up leaves in their order, as far as they
  // exist.
  void made(const Node& node) {
    done_.insert(&node);
    const auto found = readers_.find(&node);
    if (found == readers_.end()) return;
    for (const std::shared_ptr<Open>& open : found->second) add_to(*open);
  }

  Tensor total(const Node& node) {
    Open& open = *open_.at(&node);
    const TraceScope path(node.path());
    const MarkScope marks(node.marks());
    return open.sums->totals().front();
  }

 private:
  struct Open {
    std::shared_ptr<Node> node;
    std::shared_ptr<LeafSums> sums;
    std::size_t added = 0;
  };

  void add_to(Open& open) {
    const TraceScope path(open.node->path());
    const MarkScope marks(open.node->marks());
    const auto& inputs = open.node->inputs();
    while (open.added < inputs.size() && done_.contains(inputs[open.added].node().get()))
      open.sums->add({rewriter_[inputs[open.added++]]});
  }

  Rewriter& rewriter_;
  std::unordered_map<const Node*, std::shared_ptr<Open>> open_;
  std::unordered_map<const Node*, std::vector<std::shared_ptr<Open>>> readers_;
  std::unordered_set<const Node*> done_;
};

}  // namespace

Tensor LeafCopies::copy(std::size_t place, const Tensor& whole) {
  std::vector<Tensor>& copies = copies_[whole];
  if (copies.empty()) {
    const TraceScope path(whole.node()->path());
    copies = apply(leaf_copy_op(), {whole}, LeafTreeAttributes::of(options_));
  }
  return copies[place];
}

std::vector<Tensor> LeafCopies::at(std::size_t place, const std::vector<Tensor>& whole) {
  std::vector<Tensor> result;
  for (const Tensor& t : whole) result.push_back(copy(place, t));
  return result;
}

std::vector<Tensor> LeafCopies::reading(std::size_t place, const std::vector<Tensor>& values,
                                        const std::vector<Variable>& kept) {
  Replacements copies;
  for (const auto& node : topological_order({{}, values, {}})) {
    const Tensor leaf(node, 0);
    if (&node->op() != &variable_op() || !is_floating(leaf.dtype()) ||
        std::any_of(kept.begin(), kept.end(), [&](const Variable& v) { return v == leaf; }))
      continue;
    copies.emplace(leaf, copy(place, leaf));
  }
  return replace(values, copies);
}

Tensor sum_over_leaves(const std::vector<Tensor>& own, const RankOptions& options,
                       const std::string& path) {
  const PathScope scope(path, PathScope::Kind::absolute);
  return apply1(leaf_sum_op(), own, LeafTreeAttributes::of(options));
}

Graph without_leaves(const Graph& graph) {
  Rewriter rewriter;
  const auto order = topological_order(graph);
  OpenSums sums(order, rewriter);
  // All nodes are copied, so that they keep their order.
  for (const auto& node : order) {
    if (&node->op() == &leaf_copy_op())
      rewriter.replace(
          *node, std::vector<Tensor>(node->outputs().size(), rewriter[node->inputs().front()]));
    else if (&node->op() == &leaf_sum_op())
      rewriter.replace(*node, {sums.total(*node)});
    else if (!is_leaf(node->op()))
      rewriter.replace(*node, rewriter.copy(*node));
    sums.made(*node);
  }
  return rewriter.apply(graph);
}

}  // namespace ebb
