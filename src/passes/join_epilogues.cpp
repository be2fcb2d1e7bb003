// A residual addition or an activation's gradient often follows a matrix product or a norm's
// gradient. Their kernels can compute it as an epilogue, before they write: that saves one pass
// over memory and an intermediate tensor.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ebb/ops.h"
#include "ops/fp8/fp8.h"
#include "ops/matmul/matmul_then.h"
#include "ops/pointwise/pointwise.h"
#include "ops/row_norm/row_norm.h"
#include "ops/view/view.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

namespace ebb {
namespace {

using NodePtr = std::shared_ptr<Node>;

// An elementwise function to be computed by the node that makes one of its operands.
struct Epilogue {
  NodePtr function;
  Tensor other;  // the other operand
  AfterProduct kind = AfterProduct::add;
};

class JoinEpilogues {
 public:
  explicit JoinEpilogues(const Graph& graph)
      : graph_(graph), order_(topological_order(graph)), readers_(count_readers(graph)) {
    for (const NodePtr& node : order_) position_.emplace(node.get(), position_.size());
    for (const NodePtr& node : order_) match(node);
  }

  Graph run() {
    if (epilogues_.empty()) return graph_;
    for (const NodePtr& node : order_) {
      if (node->inputs().empty() || joined_.contains(node.get())) continue;
      const auto found = epilogues_.find(node.get());
      if (found == epilogues_.end())
        rewriter_.replace(*node, rewriter_.copy(*node));
      else
        join(*node, found->second);
    }
    return rewriter_.apply(graph_);
  }

 private:
  void match(const NodePtr& node) {
    // Sums of gradients over micro-batches stay separate ops, because they are reported and clipped
    // as gradients.
    if (node->category() == Category::gradients) return;
    if (&node->op() == &add_) {
      // A norm's gradient gains more from an epilogue than a product, so it is tried first.
      if (!attach(node, 0, 1, Kind::norm) && !attach(node, 1, 0, Kind::norm) &&
          !attach(node, 0, 1, Kind::product))
        attach(node, 1, 0, Kind::product);
    } else if (&node->op() == &gelu_tanh_grad_) {
      attach(node, 0, 1, Kind::product);
    }
  }

  enum class Kind { norm, product };

  bool attach(const NodePtr& function, std::size_t from, std::size_t beside, Kind kind) {
    const Tensor &operand = function->inputs()[from], &other = function->inputs()[beside];
    const TensorType& type = function->outputs()[0];
    if (operand.type() != type || other.type() != type) return false;  // one is broadcast
    const Tensor source = alone(operand);
    if (!source || epilogues_.contains(source.node().get())) return false;
    const AfterProduct epilogue =
        &function->op() == &add_ ? AfterProduct::add : AfterProduct::gelu_tanh_grad;
    if (!(kind == Kind::norm ? is_norm_gradient(source) : is_product(source, epilogue)))
      return false;
    const Node& root = *through_reshapes(other).node();
    // Views other than reshapes may not be contiguous and would have to be copied first.
    if (root.op().is_view()) return false;
    // A later operand would delay the product or norm and keep all of its inputs live. Residuals
    // and activations always come earlier.
    if (!root.inputs().empty() &&
        position_.at(other.node().get()) > position_.at(source.node().get()))
      return false;
    epilogues_.emplace(source.node().get(), Epilogue{function, other, epilogue});
    joined_.insert(function.get());
    return true;
  }

  // The tensor that `tensor` is reshaped from, if neither it nor the reshapes have other readers.
  Tensor alone(Tensor tensor) const {
    while (readers_.at(tensor) == 1) {
      if (&tensor.node()->op() != &reshape_op()) return tensor;
      tensor = tensor.node()->inputs()[0];
    }
    return {};
  }
  static Tensor through_reshapes(Tensor tensor) {
    while (&tensor.node()->op() == &reshape_op()) tensor = tensor.node()->inputs()[0];
    return tensor;
  }

  static bool is_norm_gradient(const Tensor& tensor) {
    const Node& node = *tensor.node();
    return (&node.op() == &layer_norm_grad_op() || &node.op() == &rms_norm_grad_op()) &&
           tensor.output() == 0 && !node.attributes().as<RowNormGradAttributes>().added;
  }

  // CUDA only: CPU products have no epilogues and would make the same two passes over memory.
  static bool is_product(const Tensor& tensor, AfterProduct epilogue) {
    const Node& node = *tensor.node();
    if (node.device().kind != Device::Kind::cuda || node.category() == Category::gradients)
      return false;
    if (&node.op() == &fp8_matmul_op())
      return epilogue == AfterProduct::add && !node.attributes().as<Fp8MatmulAttributes>().added;
    return &node.op() == &matmul_op() && (epilogue == AfterProduct::add || is_half(tensor.dtype()));
  }

  void join(const Node& node, const Epilogue& epilogue) {
    std::vector<Tensor> inputs = rewriter_.inputs_of(node);
    const TraceScope path(node.path());
    const MarkScope marks(node.marks());
    inputs.push_back(reshape(rewriter_[epilogue.other], node.outputs()[0].shape));
    std::vector<Tensor> outputs;
    if (&node.op() == &matmul_op()) {
      outputs = apply(matmul_then_op(), std::move(inputs),
                      MatmulThenAttributes{node.attributes().as<MatmulAttributes>(),
                                           node.inputs().size() == 3, epilogue.kind});
    } else if (&node.op() == &fp8_matmul_op()) {
      Fp8MatmulAttributes attributes = node.attributes().as<Fp8MatmulAttributes>();
      attributes.added = true;
      outputs = apply(node.op(), std::move(inputs), attributes);
    } else {
      RowNormGradAttributes attributes = node.attributes().as<RowNormGradAttributes>();
      attributes.added = true;
      outputs = apply(node.op(), std::move(inputs), attributes);
    }
    outputs[0].node()->set_category(node.category());
    rewriter_.replace(*epilogue.function,
                      {reshape(outputs[0], epilogue.function->outputs()[0].shape)});
    rewriter_.replace(node, std::move(outputs));
  }

  const Op &add_ = pointwise_op("add"), &gelu_tanh_grad_ = pointwise_op("gelu_tanh_grad");
  const Graph& graph_;
  std::vector<NodePtr> order_;
  std::unordered_map<const Node*, std::size_t> position_;
  std::unordered_map<Tensor, int> readers_;  // see count_readers
  std::unordered_map<const Node*, Epilogue> epilogues_;
  std::unordered_set<const Node*> joined_;  // functions that have become epilogues
  Rewriter rewriter_;
};

}  // namespace

Graph join_epilogues(const Graph& graph) { return JoinEpilogues(graph).run(); }

}  // namespace ebb
