#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ops/fused_reduce/fused_reduce.h"
#include "ops/leaf/leaf.h"
#include "ops/pointwise/pointwise.h"
#include "ops/view/view.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

namespace ebb {
namespace {

// Longer programs are not faster: their tiles would no longer fit the first-level cache.
constexpr std::size_t max_inputs = 8, max_code = 32;

struct Expression {
  FusedAttributes program;
  std::vector<Tensor> inputs;
};

class Fusion {
 public:
  explicit Fusion(const Graph& graph) : graph_(graph), order_(topological_order(graph)) {
    for (const auto& node : order_)
      for (const Tensor& input : node->inputs()) ++uses_[input.node().get()];
    for (const Tensor& output : graph.outputs)
      ++uses_[output.node().get()], pinned_.insert(output.node().get());
    for (const Update& update : graph.updates)
      ++uses_[update.value.node().get()], pinned_.insert(update.value.node().get());
    for (const auto& node : order_)
      if (reduce_kind(node->op())) find_evaluated(*node);
  }

  Graph run() {
    for (const auto& node : order_) {
      if (is_leaf(node->op()) || skipped_.contains(node.get())) continue;
      if (evaluated_.contains(node.get())) {
        reduce(*node);
        continue;
      }
      if (!node->op().pointwise()) {
        std::vector<Tensor> inputs;
        for (const Tensor& input : node->inputs()) inputs.push_back(materialised(input));
        rewriter_.replace(*node, rewriter_.copy(*node, std::move(inputs)));
        continue;
      }
      pending_.emplace(node.get(), combine(*node));
      if (!may_inline(*node)) materialise(*node);
    }
    return rewriter_.apply(graph_);
  }

 private:
  static bool is_generator(const Node& node) {
    return node.op().pointwise() && node.op().pointwise()->arity == 0;
  }

  // Whether the node may be fused into its readers.
  bool may_inline(const Node& node) const {
    if (pinned_.contains(&node)) return false;
    // Sums of gradients over micro-batches are not fused: all addends would have to stay live until
    // the last one is computed.
    if (node.category() == Category::gradients) return false;
    return is_generator(node) || uses_.at(&node) == 1;
  }

  // Records the elementwise node that a reduction can evaluate itself. Reshapes between them do not
  // change the order of the elements and are skipped.
  void find_evaluated(const Node& reduction) {
    const Tensor& input = reduction.inputs()[0];
    std::vector<const Node*> reshapes;
    const Node* source = input.node().get();
    while (&source->op() == &reshape_op() && uses_.at(source) == 1 && !pinned_.contains(source)) {
      reshapes.push_back(source);
      source = source->inputs()[0].node().get();
    }
    if (!source->op().pointwise() || !may_inline(*source)) return;
    const Axes& axes = reduction.attributes().as<ReduceAttributes>().axes;
    if (!gains_by_evaluating(input.shape(), axes, reduction.device())) return;
    evaluated_.emplace(&reduction, source);
    skipped_.insert(reshapes.begin(), reshapes.end());
  }

  // A producer must have the reader's shape, except for a constant fill, which fits any shape.
  static bool fits(const Node& producer, const Node& reader) {
    return producer.outputs()[0].shape == reader.outputs()[0].shape || &producer.op() == &full_op();
  }

  Expression combine(const Node& node) {
    Expression result{program_of(node), {}};
    const PointwiseInstruction last = result.program.code.back();
    result.program.input_dtypes.clear();
    result.program.code.clear();

    // Two passes: the first finds all inputs, since they are numbered before all instructions.
    std::vector<const Expression*> inlined;
    std::size_t inputs = 0, code = 1;
    for (const Tensor& operand : node.inputs()) {
      const auto found = pending_.find(operand.node().get());
      const bool inlines =
          found != pending_.end() && may_inline(*operand.node()) && fits(*operand.node(), node) &&
          inputs + found->second.inputs.size() + node.inputs().size() <= max_inputs &&
          code + found->second.program.code.size() <= max_code;
      inlined.push_back(inlines ? &found->second : nullptr);
      inputs += inlines ? found->second.inputs.size() : 1;
      code += inlines ? found->second.program.code.size() : 0;
    }
    const auto number_of = [&](const Tensor& t) {
      const auto at = std::find(result.inputs.begin(), result.inputs.end(), t);
      if (at == result.inputs.end()) {
        result.inputs.push_back(t);
        result.program.input_dtypes.push_back(t.dtype());
        return static_cast<int>(result.inputs.size()) - 1;
      }
      return static_cast<int>(at - result.inputs.begin());
    };
    std::vector<std::vector<int>> input_numbers;
    for (std::size_t i = 0; i < inlined.size(); ++i) {
      input_numbers.emplace_back();
      if (inlined[i])
        for (const Tensor& t : inlined[i]->inputs) input_numbers.back().push_back(number_of(t));
      else
        input_numbers.back().push_back(number_of(materialised(node.inputs()[i])));
    }
    const int base = static_cast<int>(result.inputs.size());
    PointwiseInstruction root = last;
    for (std::size_t i = 0; i < inlined.size(); ++i) {
      if (!inlined[i]) {
        root.operands[i] = input_numbers[i][0];
        continue;
      }
      const int own_inputs = static_cast<int>(inlined[i]->inputs.size());
      const int shift = base + static_cast<int>(result.program.code.size()) - own_inputs;
      for (PointwiseInstruction step : inlined[i]->program.code) {
        for (int& operand : step.operands)
          operand = operand < own_inputs ? input_numbers[i][static_cast<std::size_t>(operand)]
                                         : operand + shift;
        result.program.code.push_back(std::move(step));
      }
      root.operands[i] = base + static_cast<int>(result.program.code.size()) - 1;
    }
    result.program.code.push_back(std::move(root));
    return result;
  }

  const Tensor& materialised(const Tensor& old) {
    if (pending_.contains(old.node().get()) && rewriter_[old] == old) materialise(*old.node());
    return rewriter_[old];
  }

  void materialise(const Node& node) {
    const Expression& e = pending_.at(&node);
    if (e.program.code.size() == 1) {
      rewriter_.replace(node, rewriter_.copy(node));
      return;
    }
    add(node, fused_op(), e, e.program);
  }

  void reduce(const Node& node) {
    const Expression& e = pending_.at(evaluated_.at(&node));
    const FusedReduceAttributes attributes{.program = e.program,
                                           .shape = node.inputs()[0].shape(),
                                           .kind = *reduce_kind(node.op()),
                                           .reduce = node.attributes().as<ReduceAttributes>()};
    add(node, fused_reduce_op(), e, attributes);
  }

  // Replaces a node and the nodes fused into it by one op.
  void add(const Node& node, const Op& op, const Expression& e, const Attributes& attributes) {
    const TraceScope path(node.path());
    const Tensor fused =
        e.inputs.empty() ? create(op, node.device(), attributes) : apply1(op, e.inputs, attributes);
    fused.node()->set_category(node.category());
    fused.node()->set_marks(node.marks());
    rewriter_.replace(node, {fused});
  }

  const Graph& graph_;
  std::vector<std::shared_ptr<Node>> order_;
  std::unordered_map<const Node*, int> uses_;
  std::unordered_set<const Node*> pinned_;
  std::unordered_map<const Node*, const Node*> evaluated_;  // reduction → node that it evaluates
  std::unordered_set<const Node*> skipped_;                 // reshapes between those two
  std::unordered_map<const Node*, Expression> pending_;
  Rewriter rewriter_;
};

}  // namespace

Graph fuse_pointwise(const Graph& graph) { return Fusion(graph).run(); }

}  // namespace ebb
