// Where backward reads a result of forward, it reads what 8-bit codes of that result stand for, so
// that the planner keeps the codes and frees the result after its last use in forward. Codes and
// decoded values are tensors like any other: the planner may recompute or offload them.
//
// The choice depends on the graph alone, so no budget changes a bit:
// - A value is replaced if every reader in backward tolerates rounding (`tolerates_rounding`). If
//   another reader needs it in full, codes would only take more memory.
// - A norm's or an activation function's result that follows from values kept as codes is computed
//   again from these in backward, by at most `most_again` ops, and needs no codes of its own.
#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "ebb/activation_bits.h"
#include "ebb/error.h"
#include "ebb/ops.h"
#include "ebb/quantised.h"
#include "ops/attention/attention.h"
#include "ops/attention/operands.h"
#include "ops/batch_norm/batch_norm.h"
#include "ops/conv2d/conv2d.h"
#include "ops/fp8/fp8.h"
#include "ops/leaf/leaf.h"
#include "ops/matmul/matmul.h"
#include "ops/pointwise/pointwise.h"
#include "ops/row_norm/row_norm.h"
#include "ops/view/view.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

namespace ebb {

const Op& layer_norm_op();
const Op& rms_norm_op();

namespace {

using NodePtr = std::shared_ptr<Node>;

constexpr int most_again = 4;
constexpr std::int64_t least_row = 256;  // elements

// Whether the result of this op may be rounded where a product of elements in backward reads it.
// Products also read the results of exp, rsqrt, square or a difference, of which losses and norms
// are made: these stay exact.
bool may_be_factor(const Op& maker) {
  static const Op* const elementwise[] = {&pointwise_op("add"), &pointwise_op("mul"),
                                          &pointwise_op("gelu"), &pointwise_op("gelu_tanh"),
                                          &pointwise_op("silu")};
  return &maker == &matmul_op() || &maker == &layer_norm_op() || &maker == &rms_norm_op() ||
         &maker == &cast_op() || std::ranges::find(elementwise, &maker) != std::end(elementwise);
}

// Whether backward may read a rounded value here. Statistics, masks and losses are read exactly,
// and so is ReLU's result, whose sign is the mask of its gradient.
bool tolerates_rounding(const Op& reader, int input, const Op& maker) {
  static const Op *const mul = &pointwise_op("mul"), *const gelu = &pointwise_op("gelu_grad"),
                         *const gelu_tanh = &pointwise_op("gelu_tanh_grad"),
                         *const silu = &pointwise_op("silu_grad");
  if (&reader == &layer_norm_grad_op() || &reader == &rms_norm_grad_op()) return input == 0;
  if (&reader == &batch_norm_grad_op()) return input == BatchNormGrad::x;
  if (&reader == &attention_grad_op())
    return input == AttentionGrad::q || input == AttentionGrad::k || input == AttentionGrad::v ||
           input == AttentionGrad::o;
  if (&reader == gelu || &reader == gelu_tanh || &reader == silu) return input == 1;
  if (&reader == &conv2d_weight_grad_op()) return input == 0;
  if (&reader == mul) return may_be_factor(maker);
  return &reader == &matmul_op();
}

// Ops that backward may run again on decoded values: they take little time, and a small error of
// their inputs stays small.
bool is_run_again(const Op& op) {
  static const Op* const smooth[] = {&pointwise_op("gelu"), &pointwise_op("gelu_tanh"),
                                     &pointwise_op("silu"), &pointwise_op("mul")};
  return &op == &layer_norm_op() || &op == &rms_norm_op() || &op == &cast_op() ||
         std::ranges::find(smooth, &op) != std::end(smooth);
}

// A value as a matrix whose rows are cut into blocks: a row is as many of the last axes as have
// `least_row` elements, without the first. So the codes of an item do not depend on the others of
// its batch.
Encoding encoding_of(const Shape& shape) {
  std::int64_t columns = 1;
  for (int axis = shape.rank() - 1; axis >= 1 && columns < least_row; --axis)
    columns *= shape[axis];
  return {.kind = LowBits::int8,
          .block = activation_block,
          .scales_in_8_bits = false,
          .rows = shape.elements() / columns,
          .columns = columns};
}

// Rows that are shorter than a block have as many scales as longer ones.
bool saves_a_quarter(const TensorType& type) {
  return type.shape.elements() > 0 &&
         4 * encoding_of(type.shape).packed().bytes() <= 3 * type.bytes();
}

// The tensor with the bytes of `tensor`.
Tensor root_of(Tensor tensor) {
  while (tensor.node()->op().is_view()) tensor = tensor.node()->inputs()[0];
  return tensor;
}

class CodeActivations {
 public:
  explicit CodeActivations(const Graph& graph) : graph_(graph), order_(topological_order(graph)) {
    find_batch();
    find_candidates();
    choose();
  }

  CodedActivations told() const {
    CodedActivations result;
    for (const Tensor& value : chosen_) {
      const bool kept = kept_.contains(value);
      CodedActivations::Value row{value.node()->path(), std::string(value.node()->op().name()),
                                  value.type(),
                                  kept ? encoding_of(value.shape()).packed().bytes() : Bytes{}};
      (kept ? result.kept : result.again).push_back(std::move(row));
    }
    return result;
  }

  Graph run() {
    if (kept_.empty()) return graph_;
    for (const NodePtr& node : order_) {
      if (node->inputs().empty()) continue;
      if (reads_codes(*node)) {
        std::vector<Tensor> inputs;
        for (const Tensor& input : node->inputs()) inputs.push_back(in_backward(input));
        rewriter_.replace(*node, rewriter_.copy(*node, std::move(inputs)));
      } else {
        rewriter_.replace(*node, rewriter_.copy(*node));
        encode_results(node);
      }
    }
    return rewriter_.apply(graph_);
  }

 private:
  // Whether a node of backward reads codes. Products in fp8 have codes of their own, which forward
  // makes and `share_codes` lets backward read: by themselves they must read the same factors, or
  // that pass would change bits.
  static bool reads_codes(const Node& node) {
    return node.marks().backward && !node.op().is_view() && &node.op() != &fp8_product_op();
  }

  // Nodes that depend on what the step is fed. The rest is weights and what is made of them.
  void find_batch() {
    for (const NodePtr& node : order_)
      if (&node->op() == &input_op() || std::ranges::any_of(node->inputs(), [&](const Tensor& t) {
            return of_batch_.contains(t.node().get());
          }))
        of_batch_.insert(node.get());
  }

  // Results of forward that backward reads, all of whose readers there tolerate rounding.
  void find_candidates() {
    std::unordered_set<Tensor> exact;
    for (const Tensor& output : graph_.outputs) exact.insert(root_of(output));
    for (const Update& update : graph_.updates) exact.insert(root_of(update.value));
    for (const NodePtr& node : order_) {
      if (!reads_codes(*node)) continue;
      for (std::size_t i = 0; i < node->inputs().size(); ++i) {
        const Tensor value = root_of(node->inputs()[i]);
        const Node& maker = *value.node();
        if (maker.marks().backward || maker.inputs().empty() || !of_batch_.contains(&maker) ||
            !is_floating(value.dtype()))
          continue;
        candidates_.insert(value);
        if (!tolerates_rounding(node->op(), static_cast<int>(i), maker.op()) ||
            !saves_a_quarter(value.type()))
          exact.insert(value);
      }
    }
    for (const Tensor& value : exact) candidates_.erase(value);
  }

  void choose() {
    for (const NodePtr& node : order_)
      for (int i = 0; i < static_cast<int>(node->outputs().size()); ++i) {
        const Tensor value(node, i);
        if (!candidates_.contains(value)) continue;
        chosen_.push_back(value);
        if (!ops_to_make(value, most_again)) kept_.insert(value);
      }
  }

  // How many ops make a value from values that are kept as codes, or that backward has anyway;
  // nothing if there are more than `most`, or others than those of `is_run_again`.
  std::optional<int> ops_to_make(const Tensor& value, int most) const {
    const Node& node = *value.node();
    if (!of_batch_.contains(&node) || kept_.contains(value)) return 0;
    const bool view = node.op().is_view();
    if (node.inputs().empty() || node.marks().backward || !(view || is_run_again(node.op())) ||
        (!view && value.output() != 0))
      return {};
    int total = view ? 0 : 1;
    if (total > most) return {};
    for (const Tensor& input : node.inputs()) {
      const std::optional<int> ops = ops_to_make(input, most - total);
      if (!ops) return {};
      total += *ops;
    }
    return total;
  }

  void encode_results(const NodePtr& node) {
    for (int i = 0; i < static_cast<int>(node->outputs().size()); ++i) {
      const Tensor value(node, i);
      if (!kept_.contains(value)) continue;
      const TraceScope path(node->path());
      const MarkScope marks(node->marks());
      const Encoding encoding = encoding_of(value.shape());
      codes_[value] =
          quantise(reshape(rewriter_[value], {encoding.rows, encoding.columns}), encoding);
    }
  }

  // What backward reads instead of a tensor of the old graph.
  Tensor in_backward(const Tensor& value) {
    return candidates_.contains(root_of(value)) ? restored(value) : rewriter_[value];
  }

  // A value from codes: decoded, or computed again from decoded values.
  Tensor restored(const Tensor& value) {
    if (const auto found = restored_.find(value); found != restored_.end()) return found->second;
    const Node& node = *value.node();
    std::vector<Tensor> inputs;
    if (!kept_.contains(value)) {
      if (!of_batch_.contains(&node)) return rewriter_[value];
      for (const Tensor& input : node.inputs()) inputs.push_back(restored(input));
    }
    const TraceScope path(node.path());
    const MarkScope marks({.backward = true});
    const Tensor made =
        inputs.empty()
            ? reshape(dequantise(codes_.at(value), encoding_of(value.shape()), value.dtype()),
                      value.shape())
            : apply(node.op(), std::move(inputs),
                    node.attributes())[static_cast<std::size_t>(value.output())];
    return restored_[value] = made;
  }

  const Graph& graph_;
  std::vector<NodePtr> order_;
  std::unordered_set<const Node*> of_batch_;
  std::unordered_set<Tensor> candidates_;  // replaced in backward
  std::vector<Tensor> chosen_;             // the same in order
  std::unordered_set<Tensor> kept_;        // those of them with codes
  std::unordered_map<Tensor, Tensor> codes_, restored_;
  Rewriter rewriter_;
};

}  // namespace

void check_activation_bits(std::int64_t bits) {
  if (bits != 8)
    throw ValueError(fmt::format("activations can be kept in 8 bits, but {} came", bits));
}

Bytes CodedActivations::whole() const {
  Bytes total;
  for (const std::vector<Value>* values : {&kept, &again})
    for (const Value& value : *values) total += value.type.bytes();
  return total;
}

Bytes CodedActivations::codes() const {
  Bytes total;
  for (const Value& value : kept) total += value.codes;
  return total;
}

Graph code_activations(const Graph& graph) { return CodeActivations(graph).run(); }

CodedActivations told_by_code_activations(const Graph& graph) {
  return CodeActivations(graph).told();
}

}  // namespace ebb
