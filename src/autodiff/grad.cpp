#include "ebb/grad.h"

#include <fmt/core.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ebb/error.h"
#include "ebb/node.h"
#include "ebb/ops.h"

namespace ebb {
namespace {

using TensorSet = std::unordered_set<Tensor>;

// Whether gradients flow through the tensors of `wrt`. `through` gives total derivatives. `stop`
// treats these tensors as independent variables, which differentiating a reference with respect to
// its inputs needs.
enum class Flow { through, stop };

// Nodes that lead from `wrt` to `outputs`, in order of creation: inputs first.
std::vector<const Node*> nodes_between(std::span<const Tensor> outputs, const TensorSet& wrt,
                                       Flow flow, std::unordered_map<const Node*, bool>& depends) {
  std::vector<const Node*> order, stack;
  const auto enters = [&](const Tensor& t) { return flow == Flow::through || !wrt.contains(t); };
  for (const Tensor& output : outputs)
    if (enters(output)) stack.push_back(output.node().get());
  std::unordered_set<const Node*> seen;
  while (!stack.empty()) {
    const Node* node = stack.back();
    stack.pop_back();
    if (!seen.insert(node).second) continue;
    order.push_back(node);
    for (const Tensor& input : node->inputs())
      if (enters(input)) stack.push_back(input.node().get());
  }
  std::sort(order.begin(), order.end(),
            [](const Node* a, const Node* b) { return a->id() < b->id(); });
  for (const Node* node : order)
    depends[node] =
        std::any_of(node->inputs().begin(), node->inputs().end(), [&](const Tensor& input) {
          return is_floating(input.dtype()) &&
                 (wrt.contains(input) || (enters(input) && depends.at(input.node().get())));
        });
  return order;
}

class Backward {
 public:
  Backward(std::span<const Tensor> outputs, std::span<const Tensor> cotangents,
           std::span<const Tensor> wrt, Flow flow)
      : wrt_(wrt.begin(), wrt.end()), flow_(flow) {
    order_ = nodes_between(outputs, wrt_, flow, depends_);
    for (std::size_t i = 0; i < outputs.size(); ++i)
      if (cotangents[i]) add_to(outputs[i], cotangents[i]);
  }

  // Gradients of `t` are added to `sum`. Only for tensors without inputs.
  void start_from(const Tensor& t, const Tensor& sum) { grads_[t] = sum; }

  // Gradients with respect to `wrt`, empty if the outputs do not depend on a tensor.
  std::vector<Tensor> run(std::span<const Tensor> wrt) {
    for (auto node = order_.rbegin(); node != order_.rend(); ++node)
      if (depends_.at(*node)) visit(**node);
    std::vector<Tensor> results;
    for (const Tensor& t : wrt) results.push_back(grads_.contains(t) ? grads_.at(t) : Tensor{});
    return results;
  }

 private:
  bool needs(const Tensor& t) const {
    if (!is_floating(t.dtype())) return false;
    const auto found = depends_.find(t.node().get());
    return wrt_.contains(t) || (found != depends_.end() && found->second);
  }

  void add_to(const Tensor& t, const Tensor& gradient) {
    Tensor& total = grads_[t];
    const MarkScope marks({.backward = true});
    total = total ? total + gradient : gradient;
  }

  void visit(const Node& node) {
    std::vector<Tensor> outputs, grads;
    for (std::size_t i = 0; i < node.outputs().size(); ++i) {
      const Tensor output = handle(node, static_cast<int>(i));
      const auto found = grads_.find(output);
      // With Flow::stop, gradients do not flow through the tensors of `wrt`.
      const bool passes = flow_ == Flow::through || !wrt_.contains(output);
      outputs.push_back(output);
      grads.push_back(found != grads_.end() && passes ? found->second : Tensor{});
    }
    if (std::none_of(grads.begin(), grads.end(),
                     [](const Tensor& g) { return static_cast<bool>(g); }))
      return;

    IndexSet needed;
    for (std::size_t i = 0; i < node.inputs().size(); ++i)
      if (needs(node.inputs()[i])) needed.insert(static_cast<int>(i));
    const TraceScope path(node.path());
    const MarkScope marks({.backward = true});
    const std::vector<Tensor> input_grads =
        gradients(node, GradientCall(node, outputs, grads, needed), grads);
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      const Tensor& input = node.inputs()[i];
      if (!needed.contains(static_cast<int>(i)) || !input_grads[i]) continue;
      if (input_grads[i].type() != input.type())
        throw Error(fmt::format("[{}] its gradient in input {} is {}, but the input is {}",
                                node.op().name(), i, to_string(input_grads[i].type()),
                                to_string(input.type())));
      add_to(input, input_grads[i]);
    }
  }

  static std::vector<Tensor> gradients(const Node& node, const GradientCall& call,
                                       std::span<const Tensor> grads) {
    if (node.op().has_own_gradient()) return node.op().gradient(call, node.attributes());
    if (!node.op().has_reference())
      throw Error(fmt::format("[{}] has no gradient", node.op().name()));
    const std::vector<Tensor> outputs = node.op().reference(node.inputs(), node.attributes());
    return Backward(outputs, grads, node.inputs(), Flow::stop).run(node.inputs());
  }

  // A handle that shares ownership. The outputs of a node in the order can be reached from some
  // tensor that is held here.
  Tensor handle(const Node& node, int output) const {
    return {std::const_pointer_cast<Node>(node.shared_from_this()), output};
  }

  TensorSet wrt_;
  Flow flow_;
  std::unordered_map<const Node*, bool> depends_;
  std::vector<const Node*> order_;
  std::unordered_map<Tensor, Tensor> grads_;
};

}  // namespace

GradientCall::GradientCall(const Node& node, std::span<const Tensor> outputs,
                           std::span<const Tensor> grads, IndexSet needed)
    : node_(node), outputs_(outputs), grads_(grads), needed_(std::move(needed)) {}

const Tensor& GradientCall::input(int i) const {
  if (!node_.op().saved().inputs.contains(i))
    throw Error(fmt::format("[{}] the gradient reads input {}, which `saved` does not declare",
                            node_.op().name(), i));
  return node_.inputs()[static_cast<std::size_t>(i)];
}

const Tensor& GradientCall::output(int i) const {
  if (!node_.op().saved().outputs.contains(i))
    throw Error(fmt::format("[{}] the gradient reads output {}, which `saved` does not declare",
                            node_.op().name(), i));
  return outputs_[static_cast<std::size_t>(i)];
}

const TensorType& GradientCall::input_type(int i) const {
  return node_.inputs()[static_cast<std::size_t>(i)].type();
}
const TensorType& GradientCall::output_type(int i) const {
  return node_.outputs()[static_cast<std::size_t>(i)];
}
int GradientCall::input_count() const { return static_cast<int>(node_.inputs().size()); }
bool GradientCall::has_grad(int i) const {
  return static_cast<bool>(grads_[static_cast<std::size_t>(i)]);
}

Tensor GradientCall::grad(int i) const {
  if (has_grad(i)) return grads_[static_cast<std::size_t>(i)];
  return zeros(output_type(i).shape, output_type(i).dtype, node_.device());
}

std::vector<Tensor> vjp(std::span<const Tensor> outputs, std::span<const Tensor> cotangents,
                        std::span<const Tensor> wrt) {
  if (outputs.size() != cotangents.size())
    throw ValueError(fmt::format("[vjp] {} outputs need as many cotangents, but {} came",
                                 outputs.size(), cotangents.size()));
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (!outputs[i]) throw ValueError(fmt::format("[vjp] output {} is an empty tensor", i));
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (cotangents[i] && cotangents[i].type() != outputs[i].type())
      throw ShapeError(fmt::format("[vjp] cotangent {} must be {} like its output, but is {}", i,
                                   to_string(outputs[i].type()), to_string(cotangents[i].type())));
  for (const Tensor& t : wrt)
    if (!t || !is_floating(t.dtype()))
      throw DTypeError(
          fmt::format("[vjp] gradients exist only in floating-point tensors, but {} came",
                      t ? to_string(t.type()) : "an empty tensor"));
  std::vector<Tensor> gradients = Backward(outputs, cotangents, wrt, Flow::through).run(wrt);
  for (std::size_t i = 0; i < wrt.size(); ++i)
    if (!gradients[i]) gradients[i] = zeros_like(wrt[i]);
  return gradients;
}

namespace {

void require_number(const Tensor& loss) {
  if (!loss || loss.shape().elements() != 1 || !is_floating(loss.dtype()))
    throw ShapeError(fmt::format("[grad] the loss must be one floating-point number, but is {}",
                                 loss ? to_string(loss.type()) : "an empty tensor"));
}

}  // namespace

std::vector<Tensor> grad_onto(std::span<const Tensor> sums, const Tensor& loss,
                              std::span<const Tensor> wrt) {
  require_number(loss);
  const Tensor one = full_like(loss, 1.0);
  Backward backward(std::span(&loss, 1), std::span(&one, 1), wrt, Flow::through);
  for (std::size_t i = 0; i < wrt.size(); ++i) {
    if (!wrt[i].node()->inputs().empty())
      throw ValueError(
          fmt::format("[grad] sums are only for variables and inputs, but tensor {} is "
                      "computed by {}",
                      i, wrt[i].node()->op().name()));
    backward.start_from(wrt[i], sums[i]);
  }
  return backward.run(wrt);
}

std::vector<Tensor> grad_where_reached(const Tensor& loss, std::span<const Tensor> wrt) {
  require_number(loss);
  const Tensor one = full_like(loss, 1.0);
  return Backward(std::span(&loss, 1), std::span(&one, 1), wrt, Flow::through).run(wrt);
}

std::vector<Tensor> grad(const Tensor& loss, std::span<const Tensor> wrt) {
  require_number(loss);
  const Tensor one = full_like(loss, 1.0);
  return vjp(std::span(&loss, 1), std::span(&one, 1), wrt);
}

std::vector<Tensor> grad(const Tensor& loss, std::initializer_list<Tensor> wrt) {
  return grad(loss, std::span<const Tensor>(wrt.begin(), wrt.size()));
}

std::vector<Tensor> hessian_vector_product(const Tensor& loss, std::span<const Tensor> wrt,
                                           std::span<const Tensor> vectors) {
  const std::vector<Tensor> gradients = grad(loss, wrt);
  return vjp(gradients, vectors, wrt);
}

}  // namespace ebb
