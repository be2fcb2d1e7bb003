// Every tensor of the old graph is replaced by a tensor in the dtype that the ops' rules give. A
// tensor is *weak* if its dtype has no influence on the ops that read it: parameters, generated
// numbers, scalar inputs and constants, and what is computed from weak tensors alone. All others
// are strong. An op with Narrowing::follows takes the widest dtype of its strong inputs.
#include "ebb/precision.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "ebb/error.h"
#include "ebb/graph.h"
#include "ebb/node.h"
#include "ebb/ops.h"
#include "ops/fp8/fp8.h"
#include "ops/leaf/leaf.h"
#include "ops/pointwise/pointwise.h"

namespace ebb {
namespace {

struct PrecisionRow {
  Precision precision;
  std::string_view name;
  DType product, parameter;
};
constexpr std::array precision_rows{
    PrecisionRow{Precision::fp32, "fp32", f32, f32},
    PrecisionRow{Precision::mixed_fp16, "fp16", f16, f32},
    PrecisionRow{Precision::mixed_bf16, "bf16", bf16, f32},
    PrecisionRow{Precision::pure_bf16, "pure-bf16", bf16, bf16},
    PrecisionRow{Precision::split_bf16, "split-bf16", bf16, bf16},
    PrecisionRow{Precision::fp8, "fp8", bf16, bf16},
};

const PrecisionRow& row_of(Precision precision) {
  return precision_rows[static_cast<std::size_t>(precision)];
}

// Whether fp8 applies to this product, judging by its place in the model.
bool is_block_product(const Node& node) {
  return &node.op() == &matmul_op() && node.marks().block != 0 && node.inputs()[0].rank() == 2 &&
         node.inputs()[1].rank() == 2;
}

std::optional<std::string> obstacle_of(const Node& product) {
  // For such thin factors, as adapters have, rounding the other factor would take longer than the
  // product saves.
  constexpr std::int64_t thin = 32;
  const Shape& weight = product.inputs()[1].shape();
  if (const std::int64_t shorter = std::min(weight[0], weight[1]); shorter < thin)
    return fmt::format("{} × {}: an axis of fewer than {} gains nothing", weight[0], weight[1],
                       thin);
  return fp8_obstacle(product.inputs()[0].shape(), product.inputs()[1].shape(),
                      product.attributes().as<MatmulAttributes>());
}

}  // namespace

std::string_view name(Precision precision) { return row_of(precision).name; }
DType product_dtype(Precision precision) { return row_of(precision).product; }
DType parameter_dtype(Precision precision) { return row_of(precision).parameter; }

Precision precision_by_name(std::string_view name) {
  std::string known;
  for (const PrecisionRow& row : precision_rows) {
    if (row.name == name) return row.precision;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
  }
  throw ValueError(fmt::format("a precision is one of {}, but \"{}\" came", known, name));
}

class HalfPrecision::Rewriting {
 public:
  Rewriting(DType half, BlockProducts products) : half_(half), products_(products) {}

  std::vector<Tensor> rewrite(const std::vector<Tensor>& values) {
    for (const auto& node : topological_order({.inputs = {}, .outputs = values, .updates = {}}))
      if (!new_.contains(node.get())) visit(node);
    std::vector<Tensor> result;
    for (const Tensor& value : values) result.push_back(renewed(value));
    return result;
  }

 private:
  struct Renewed {
    std::shared_ptr<Node> old;  // kept alive, since its address is the key
    std::vector<Tensor> outputs;
    bool weak = false;
  };

  const Tensor& renewed(const Tensor& old) const {
    return new_.at(old.node().get()).outputs[static_cast<std::size_t>(old.output())];
  }
  bool weak(const Tensor& old) const { return new_.at(old.node().get()).weak; }

  void visit(const std::shared_ptr<Node>& node) {
    const Op& op = node->op();
    if (node->inputs().empty()) {
      const bool strong = &op == &input_op() || &op == &constant_op();
      std::vector<Tensor> outputs;
      for (std::size_t i = 0; i < node->outputs().size(); ++i)
        outputs.emplace_back(node, static_cast<int>(i));
      new_[node.get()] = {node, outputs, !strong || outputs[0].shape().rank() == 0};
      return;
    }
    const bool all_weak = std::ranges::all_of(
        node->inputs(), [&](const Tensor& t) { return weak(t) || !is_floating(t.dtype()); });
    switch (op.narrowing()) {
      case Narrowing::sought:
        renew(node, half_, false);
        if (products_ == BlockProducts::fp8 && is_block_product(*node) && !obstacle_of(*node))
          round_factors(*node);
        return;
      case Narrowing::refused:
        return all_weak ? renew(node, {}, true) : renew(node, f32, false);
      case Narrowing::follows:
        break;
    }
    const bool from_floating =
        std::ranges::any_of(node->inputs(), [](const Tensor& t) { return is_floating(t.dtype()); });
    // A cast keeps the dtype that was asked for. A cast from bool is weak: 0 and 1 are exact in any
    // dtype.
    if (&op == &cast_op())
      return renew(node, {}, node->inputs()[0].dtype() == b8 || (from_floating && all_weak));
    if (!from_floating || all_weak) return renew(node, {}, from_floating);
    follow(node);
  }

  // Runs an op in the widest dtype of its strong inputs. If that is half precision and an input of
  // an elementwise op is generated, the op runs in float32 and its result is rounded once, since a
  // generated number such as 0.1 would lose digits in half precision. This costs no time:
  // elementwise ops are fused with the casts around them.
  void follow(const std::shared_ptr<Node>& node) {
    DType widest = half_;
    bool generated = false;
    for (const Tensor& t : node->inputs()) {
      if (!is_floating(t.dtype())) continue;
      if (!weak(t) && size_of(renewed(t).dtype()) > size_of(widest)) widest = renewed(t).dtype();
      generated |= weak(t) && t.node()->op().pointwise() && t.node()->inputs().empty();
    }
    if (!is_half(widest) || !generated || !node->op().pointwise())
      return renew(node, widest, false);
    renew(node, f32, false);
    for (Tensor& output : new_.at(node.get()).outputs)
      if (is_floating(output.dtype())) output = cast(output, half_);
  }

  // Applies the same op to the new inputs. With `dtype`, floating-point inputs are cast to it.
  void renew(const std::shared_ptr<Node>& node, std::optional<DType> dtype, bool weak) {
    std::vector<Tensor> inputs;
    const TraceScope path(node->path());
    const MarkScope marks(node->marks());
    for (const Tensor& old : node->inputs()) {
      const Tensor& input = renewed(old);
      const bool converts = dtype && is_floating(input.dtype()) && input.dtype() != *dtype;
      inputs.push_back(converts ? converted(input, *dtype) : input);
    }
    std::vector<Tensor> outputs;
    if (inputs == node->inputs()) {
      for (std::size_t i = 0; i < node->outputs().size(); ++i)
        outputs.emplace_back(node, static_cast<int>(i));
    } else {
      outputs = apply(node->op(), std::move(inputs), node->attributes());
      outputs[0].node()->set_category(node->category());
    }
    new_[node.get()] = {node, std::move(outputs), weak};
  }

  // Replaces a product of half precision by one whose factors are rounded to fp8.
  void round_factors(const Node& product) {
    Renewed& made = new_.at(&product);
    const Node& half = *made.outputs[0].node();
    const TraceScope path(product.path());
    const MarkScope marks(product.marks());
    std::vector<Tensor> outputs =
        apply(fp8_product_op(), half.inputs(),
              Fp8ProductAttributes{.product = product.attributes().as<MatmulAttributes>()});
    outputs[0].node()->set_category(product.category());
    made.outputs = std::move(outputs);
  }

  // `t` in another dtype. A view of a parameter becomes a view of the cast parameter. All readers
  // share a cast to half precision, since they need it in memory. A cast to float32 is not shared,
  // so that it can be fused into each reader.
  Tensor converted(const Tensor& t, DType dtype) {
    const Node& node = *t.node();
    if (dtype == f32 && !node.op().is_view()) return cast(t, dtype);
    const auto found = converted_.find(t);
    if (found != converted_.end() && found->second.dtype() == dtype) return found->second;
    Tensor result;
    if (node.op().is_view() && parameter_below(t)) {
      const TraceScope path(node.path());
      result = apply(node.op(), {converted(node.inputs()[0], dtype)},
                     node.attributes())[static_cast<std::size_t>(t.output())];
    } else {
      result = cast(t, dtype);
    }
    converted_[t] = result;
    return result;
  }

  static bool parameter_below(const Tensor& t) {
    const Node* node = t.node().get();
    while (node->op().is_view()) node = node->inputs()[0].node().get();
    return &node->op() == &variable_op();
  }

  DType half_;
  BlockProducts products_;
  std::unordered_map<const Node*, Renewed> new_;
  std::unordered_map<Tensor, Tensor> converted_;
};

HalfPrecision::HalfPrecision(DType half, BlockProducts products)
    : rewriting_(std::make_unique<Rewriting>(half, products)) {
  if (!is_half(half))
    throw DTypeError(fmt::format("half precision is float16 or bfloat16, but {} came", name(half)));
  if (products == BlockProducts::fp8 && half != bf16)
    throw DTypeError(
        fmt::format("products in fp8 are of bfloat16 factors, but {} came", name(half)));
}
HalfPrecision::~HalfPrecision() = default;
HalfPrecision::HalfPrecision(HalfPrecision&&) noexcept = default;

std::vector<Tensor> HalfPrecision::operator()(const std::vector<Tensor>& values) {
  return rewriting_->rewrite(values);
}

Fp8Products fp8_products(const Graph& graph) {
  Fp8Products found;
  std::set<std::pair<std::string, std::string>> seen;  // each micro-batch has the same products
  for (const auto& node : topological_order(graph)) {
    if (&node->op() == &fp8_product_op()) ++found.in_fp8;
    if (!is_block_product(*node) || node->marks().backward) continue;
    if (auto obstacle = obstacle_of(*node);
        obstacle && seen.emplace(node->path(), *obstacle).second)
      found.others.push_back({node->path(), std::move(*obstacle)});
  }
  return found;
}

}  // namespace ebb
