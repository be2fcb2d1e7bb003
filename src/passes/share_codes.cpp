// A product in fp8 becomes ops that encode its factors and an op that multiplies the codes. A
// factor of several products is encoded once: an activation for forward and for the gradient of the
// weight, a gradient for both products of backward. So backward keeps only the codes of an
// activation.
#include <array>
#include <functional>
#include <unordered_map>

#include "ebb/ops.h"
#include "ops/fp8/fp8.h"
#include "ops/leaf/leaf.h"
#include "ops/view/view.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

namespace ebb {
namespace {

using NodePtr = std::shared_ptr<Node>;
using Codes = Fp8QuantiseAttributes::Codes;

class ShareCodes {
 public:
  explicit ShareCodes(const Graph& graph) : graph_(graph), order_(topological_order(graph)) {
    for (const NodePtr& node : order_)
      if (&node->op() == &fp8_product_op())
        for (const Factor& factor : factors_of(*node)) {
          Wanted& wanted = wanted_[key_of(factor)];
          (factor.transposed ? wanted.transposed : wanted.plain) = true;
        }
  }

  Graph run() {
    if (wanted_.empty()) return graph_;
    for (const NodePtr& node : order_) {
      if (node->inputs().empty()) continue;
      rewriter_.replace(
          *node, &node->op() == &fp8_product_op() ? multiplied(*node) : rewriter_.copy(*node));
    }
    return rewriter_.apply(graph_);
  }

 private:
  struct Factor {
    Tensor matrix;  // of the old graph
    Fp8 format;
    bool transposed;
  };
  // Reshapes of one tensor to the same matrix have the same codes.
  struct Key {
    Tensor root;
    std::int64_t columns;
    Fp8 format;
    bool operator==(const Key&) const = default;
  };
  struct HashKey {
    std::size_t operator()(const Key& key) const {
      return std::hash<Tensor>()(key.root) * 31 + static_cast<std::size_t>(key.columns) * 2 +
             static_cast<std::size_t>(key.format);
    }
  };
  struct Wanted {
    bool plain = false, transposed = false;
  };
  struct Encoded {
    Tensor codes, step;
  };

  static std::array<Factor, 2> factors_of(const Node& product) {
    const auto& a = product.attributes().as<Fp8ProductAttributes>();
    return {Factor{product.inputs()[0], a.a, a.product.transpose_a},
            Factor{product.inputs()[1], a.b, !a.product.transpose_b}};
  }

  static Key key_of(const Factor& factor) {
    Tensor root = factor.matrix;
    while (&root.node()->op() == &reshape_op()) root = root.node()->inputs()[0];
    return {root, factor.matrix.shape()[1], factor.format};
  }

  std::vector<Tensor> multiplied(const Node& product) {
    const TraceScope path(product.path());
    const MarkScope marks(product.marks());
    const auto& at = product.attributes().as<Fp8ProductAttributes>();
    const auto factors = factors_of(product);
    const Encoded a = encoded(factors[0]), b = encoded(factors[1]);
    const bool bias = product.inputs().size() == 3;
    std::vector<Tensor> inputs =
        bias ? std::vector{a.codes, b.codes, a.step, b.step, rewriter_[product.inputs()[2]]}
             : std::vector{a.codes, b.codes, a.step, b.step};
    std::vector<Tensor> outputs = apply(fp8_matmul_op(), std::move(inputs),
                                        Fp8MatmulAttributes{.a = at.a, .b = at.b, .bias = bias});
    outputs[0].node()->set_category(product.category());
    return outputs;
  }

  // One kernel encodes a factor that is needed in both orientations. This excludes weights: their
  // codes for backward would be kept from forward on, although a weight can be encoded again at any
  // time.
  Encoded encoded(const Factor& factor) {
    const Key key = key_of(factor);
    const Wanted wanted = wanted_.at(key);
    const bool both = wanted.plain && wanted.transposed && !is_weight(key.root);
    const Codes codes = both ? Codes::both : factor.transposed ? Codes::transposed : Codes::plain;
    std::vector<Tensor>& made = made_[static_cast<std::size_t>(codes)][key];
    if (made.empty()) {
      const Tensor x = reshape(rewriter_[key.root], factor.matrix.shape());
      Tensor& magnitudes = magnitudes_[key.root];
      if (!magnitudes) magnitudes = apply1(fp8_amax_op(), {x}, NoAttributes{});
      made = apply(fp8_quantise_op(), {x, magnitudes}, Fp8QuantiseAttributes{key.format, codes});
    }
    return {made[both && factor.transposed ? 1 : 0], made.back()};
  }

  // A parameter, or a tensor made from parameters alone: casts, views, gathered ranges.
  static bool is_weight(const Tensor& tensor) {
    const Node* node = tensor.node().get();
    while (node->inputs().size() == 1) node = node->inputs()[0].node().get();
    return &node->op() == &variable_op();
  }

  const Graph& graph_;
  std::vector<NodePtr> order_;
  std::unordered_map<Key, Wanted, HashKey> wanted_;
  std::unordered_map<Key, std::vector<Tensor>, HashKey> made_[3];  // by Codes: the op's outputs
  std::unordered_map<Tensor, Tensor> magnitudes_;
  Rewriter rewriter_;
};

}  // namespace

Graph share_codes(const Graph& graph) { return ShareCodes(graph).run(); }

}  // namespace ebb
