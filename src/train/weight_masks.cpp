#include "train/weight_masks.h"

#include <fmt/core.h>

#include <algorithm>
#include <unordered_map>

#include "ebb/error.h"
#include "ebb/masks.h"
#include "ebb/node.h"
#include "ebb/ops.h"
#include "ops/fp8/fp8.h"
#include "ops/matmul/matmul.h"
#include "ops/optimizer_step.h"

namespace ebb {
namespace {

// How the forward pass reads a parameter.
struct Use {
  bool product = false, convolution = false, other = false;
  std::int64_t input_axis = 0;
};

// The node without the casts that half precision puts before products.
const Node& source(const Tensor& tensor) {
  const Node* node = tensor.node().get();
  while (node->op().name() == "cast") node = node->inputs()[0].node().get();
  return *node;
}

void note_use(const Node& reader, std::size_t input, Use& use) {
  const std::string_view op = reader.op().name();
  const Tensor& weight = reader.inputs()[input];
  const MatmulAttributes* product = op == "matmul" ? &reader.attributes().as<MatmulAttributes>()
                                    : op == "fp8_product"
                                        ? &reader.attributes().as<Fp8ProductAttributes>().product
                                        : nullptr;
  if (product && input == 1 && weight.rank() == 2 && !product->transpose_a) {
    use.product = true;
    use.input_axis = product->transpose_b ? 1 : 0;
  } else if (op == "conv2d" && input == 1) {
    use.convolution = true;
  } else if (op != "cast") {
    use.other = true;
  }
}

void require_pattern(const MaskedWeight& weight, const Use& use, const Pattern& pattern) {
  const std::string text = fmt::format("the pattern {}:{}", pattern.kept, pattern.of);
  if (use.convolution)
    throw ValueError(fmt::format("{} is for matrices, but \"{}\" is the weight of a convolution",
                                 text, weight.parameter.path));
  const Shape& shape = weight.parameter.variable.shape();
  const std::int64_t inputs = shape[static_cast<int>(weight.input_axis)];
  if (inputs % pattern.of != 0)
    throw ValueError(fmt::format("{}: {} inputs do not divide into runs of {} for {}",
                                 weight.parameter.path, inputs, pattern.of, text));
}

Tensor with_category(const Tensor& tensor, Category category) {
  tensor.node()->set_category(category);
  return tensor;
}

}  // namespace

std::vector<MaskedWeight> masked_weights(const Tensor& loss,
                                         const std::vector<nn::NamedVariable>& parameters,
                                         const std::optional<Pattern>& pattern) {
  std::unordered_map<const Node*, Use> uses;
  for (const nn::NamedVariable& p : parameters) uses.emplace(p.variable.node().get(), Use{});
  Graph graph;
  graph.outputs = {loss};
  for (const auto& node : topological_order(graph))
    for (std::size_t i = 0; i < node->inputs().size(); ++i)
      if (const auto use = uses.find(&source(node->inputs()[i])); use != uses.end())
        note_use(*node, i, use->second);
  std::vector<MaskedWeight> result;
  for (const nn::NamedVariable& p : parameters) {
    if (p.pairs)
      throw ValueError(fmt::format(
          "sparsity: \"{}\" is stored without the zeros of its pattern 2:4 and cannot have a mask; "
          "train it without masks, and its zeros stay",
          p.path));
    const Use& use = uses.at(p.variable.node().get());
    if (use.other || use.product == use.convolution) continue;
    result.push_back({p, use.input_axis});
    if (pattern) require_pattern(result.back(), use, *pattern);
  }
  if (result.empty())
    throw ValueError(
        "no parameter can have a mask: the loss reads none by products or convolutions alone");
  return result;
}

void WeightMasks::find(const Tensor& loss, const std::vector<nn::NamedVariable>& parameters,
                       const optim::Optimizer& optimizer) {
  if (!weights_.empty()) return;
  std::vector<MaskedWeight> found = masked_weights(loss, parameters, how_.pattern);
  for (const MaskedWeight& weight : found)
    for (const optim::StateField& field : optimizer.state(weight.parameter))
      if (field.type.dtype == u8 && field.name != "lower_bits")
        throw ValueError(
            fmt::format("\"{}.{}\": moments in few bits cannot be set to zero weight by weight, as "
                        "masks need; adam, adamw, sgd, lion and adafactor can be trained with",
                        weight.parameter.path, field.name));
  weights_ = std::move(found);
}

bool WeightMasks::owns(const std::string& path) const {
  return path.ends_with(".mask") || path.ends_with(".movement");
}

const MaskedWeight* WeightMasks::find_weight(const nn::NamedVariable& parameter) const {
  const auto found = std::find_if(weights_.begin(), weights_.end(), [&](const MaskedWeight& w) {
    return w.parameter.path == parameter.path;
  });
  return found == weights_.end() ? nullptr : &*found;
}

Variable WeightMasks::mask_of(const MaskedWeight& weight) {
  return store_.get(weight.mask_path(), mask_type(weight.parameter.variable.shape().elements()),
                    device_, 255.0);
}
Variable WeightMasks::movement_of(const MaskedWeight& weight) {
  const Variable& parameter = weight.parameter.variable;
  return store_.get(weight.movement_path(), {parameter.shape(), state_dtype(parameter.dtype())},
                    device_);
}

void WeightMasks::make_state() {
  if (weights_.empty())
    throw ValueError(
        "which weights have masks is known when the step has been planned: call TrainStep::plan "
        "first");
  for (const MaskedWeight& weight : weights_) {
    mask_of(weight);
    if (how_.method == MaskMethod::movement) movement_of(weight);
  }
}

WeightMasks::InStep WeightMasks::in_step(const std::vector<nn::NamedVariable>& parameters,
                                         const std::vector<Tensor>& gradients,
                                         const Tensor& exchange) {
  InStep result;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const MaskedWeight* weight = find_weight(parameters[i]);
    result.masks.emplace_back();
    if (!weight) continue;
    const TraceScope scope(parameters[i].path);
    const Variable mask = mask_of(*weight);
    result.masks.back() = mask;
    if (how_.method != MaskMethod::rigl) continue;
    result.masks.back() = with_category(
        regrown_mask(parameters[i].variable, mask, exchange, optim::as_made(gradients[i])),
        Category::optimizer);
    result.updates.push_back({mask, result.masks.back()});
  }
  return result;
}

std::vector<Update> WeightMasks::updates(const InStep& masks, const Tensor& taken) {
  std::vector<Update> result = masks.updates;
  if (!taken) return result;
  for (Update& update : result) {
    const PathScope scope(update.value.node()->path(), PathScope::Kind::absolute);
    update.value = with_category(where(taken, update.value, update.target), Category::optimizer);
  }
  return result;
}

void WeightMasks::apply(const InStep& masks, std::vector<Tensor>& gradients) {
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!masks.masks[i]) continue;
    const PathScope scope(gradients[i].node()->path(), PathScope::Kind::absolute);
    // Half-precision gradients stay so: optimizers read them before the cast to float32.
    const Tensor made = optim::as_made(gradients[i]);
    gradients[i] = cast(with_category(masked(made, masks.masks[i]), Category::gradients),
                        gradients[i].dtype());
  }
}

std::vector<Update> WeightMasks::movement(const std::vector<nn::NamedVariable>& parameters,
                                          const std::vector<Tensor>& gradients,
                                          const Tensor& factor) {
  std::vector<Update> result;
  if (how_.method != MaskMethod::movement) return result;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const MaskedWeight* weight = find_weight(parameters[i]);
    if (!weight) continue;
    const TraceScope scope(parameters[i].path);
    const Variable sum = movement_of(*weight);
    Tensor step = cast(parameters[i].variable, sum.dtype()) * cast(gradients[i], sum.dtype());
    if (factor) {
      // 0 · NaN is not 0.
      const Tensor scale = cast(factor, sum.dtype());
      step = where(equal(scale, zeros_like(scale)), zeros_like(step), step * scale);
    }
    result.push_back({sum, sum - step});
  }
  return result;
}

Graph WeightMasks::change_graph(const optim::Optimizer& optimizer) {
  const TraceScope fresh;
  Graph graph;
  const Tensor share = input({{}, f64}, "share", device_);
  graph.inputs = {share};
  for (const MaskedWeight& weight : weights_) {
    const TraceScope scope(weight.parameter.path);
    const Variable& parameter = weight.parameter.variable;
    const Variable mask = mask_of(weight);
    Tensor now = mask;
    const MaskRuns runs{how_.pattern ? how_.pattern->of : 0, weight.input_axis};
    switch (how_.method) {
      case MaskMethod::magnitude:
        now = shrunk_mask(parameter, mask, share, MaskScore::magnitude, runs);
        break;
      case MaskMethod::movement:
        now = shrunk_mask(movement_of(weight), mask, share, MaskScore::value, runs);
        break;
      case MaskMethod::rigl:  // at first; later steps exchange weights themselves
        now = shrunk_mask(random_uniform(parameter.shape(), 0.0, 1.0, f32, device_), mask, share,
                          MaskScore::value);
        break;
      case MaskMethod::fixed:
        break;
    }
    if (now != mask) graph.updates.push_back({mask, now});
    const std::int64_t elements = parameter.shape().elements();
    graph.updates.push_back({parameter, masked(parameter, now)});
    for (const optim::StateField& field : optimizer.state(weight.parameter)) {
      // Factored moments do not change: they only scale gradients, which are zero.
      if (field.type.shape != parameter.shape() && field.name != "lower_bits") continue;
      const Variable state = store_.get(weight.parameter.path + '.' + std::string(field.name),
                                        field.type, device_, field.initial);
      graph.updates.push_back({state, masked(state, now, elements)});
    }
  }
  return graph;
}

void WeightMasks::change(std::int64_t steps, const optim::Optimizer& optimizer,
                         const CompileOptions& options, When when) {
  // A resumed run has already made the change that was due at its start.
  const bool at_start = when == When::start;
  const auto share = at_start && steps > 0 ? std::nullopt : how_.share_after(steps);
  if (!program_) {
    CompileOptions own = options;
    own.planner = {};  // a plan from a file is of the step
    program_.emplace(change_graph(optimizer), own);
  }
  if (!share && !at_start && !how_.exchange_after(steps)) return;
  program_->feed(0, share.value_or(-1.0));
  program_->set_step(static_cast<std::uint64_t>(steps));
  program_->run();
}

std::map<std::string, Variable> WeightMasks::by_path() {
  make_state();
  std::map<std::string, Variable> result;
  for (const MaskedWeight& weight : weights_)
    result.emplace(weight.parameter.path, mask_of(weight));
  return result;
}

TrainStep::MaskCounts WeightMasks::counts() const {
  TrainStep::MaskCounts result;
  for (const MaskedWeight& weight : weights_) {
    const std::int64_t count = weight.parameter.variable.shape().elements();
    ++result.tensors, result.weights += count;
    const auto found = store_.all().find(weight.mask_path());
    if (found == store_.all().end() || !found->second.has_value()) continue;
    const std::vector<std::uint8_t> bits = found->second.to_vector<std::uint8_t>();
    for (std::int64_t i = 0; i < count; ++i)
      result.dead += !(bits[static_cast<std::size_t>(i / 8)] >> i % 8 & 1);
  }
  return result;
}

}  // namespace ebb
