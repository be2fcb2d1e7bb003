#include "ebb/train/train_step.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "ebb/activation_bits.h"
#include "ebb/error.h"
#include "ebb/node.h"
#include "ebb/ops.h"
#include "ebb/storage.h"
#include "ops/loss/loss.h"
#include "train/buffer_chain.h"
#include "train/leaf_sums.h"
#include "train/programs_by_shape.h"
#include "train/sharded_state.h"
#include "train/step_builder.h"
#include "train/trace_count.h"
#include "train/usual_form.h"
#include "train/weight_masks.h"

namespace ebb {

const Tensor& Batch::at(std::size_t i) const {
  if (i < tensors.size()) return tensors[i];
  throw ValueError(fmt::format("[Batch] {} was asked for, but the batch has {} tensor{}",
                               i == 0   ? "x(), the inputs,"
                               : i == 1 ? "y(), the targets,"
                                        : fmt::format("tensor {}", i),
                               tensors.size(), tensors.size() == 1 ? ": it has no targets" : "s"));
}

std::vector<TensorType> Batch::types() const {
  std::vector<TensorType> result;
  for (const Tensor& t : tensors) result.push_back(t.type());
  return result;
}

namespace {

void check_ranks(const TrainOptions& options) {
  const RankOptions& ranks = options.ranks;
  if (!ranks.any()) {
    if (ranks.count != 1 || ranks.shard != Shard::nothing)
      throw ValueError("TrainOptions: ranks share the leaves of a batch, but `leaves` is 0");
    return;
  }
  LeafBlocks::of(ranks);
  if (options.accumulate > 1)
    throw ValueError("TrainOptions: `leaves` and `accumulate` both divide a batch; give one");
  if (options.clip_norm && options.clip_by == ClipBy::two_backwards && ranks.leaves > 1)
    throw ValueError("clipping by two backwards cannot go with leaves, whose gradients are summed");
}

void check_options(const nn::ModuleBase& model, const TrainOptions& options) {
  if (!options.schedule) throw ValueError("TrainOptions: a schedule is needed, but none came");
  if (options.accumulate < 1)
    throw ValueError(
        fmt::format("TrainOptions: accumulate must be at least 1, but is {}", options.accumulate));
  if (options.clip_norm && !(*options.clip_norm > 0.0 && std::isfinite(*options.clip_norm)))
    throw ValueError(fmt::format("TrainOptions: clip_norm must be positive and finite, but is {}",
                                 *options.clip_norm));
  if (!options.clip_norm && options.clip_by != ClipBy::this_norm)
    throw ValueError("TrainOptions: clip_by says how to clip, but there is no clip_norm");
  require_parameter_dtype(model.trainable_parameters(), options.precision);
  check_ranks(options);
  if (options.sparse) {
    options.sparse->check();
    if (options.ranks.count > 1)
      throw ValueError("TrainOptions: masks of weights are for one rank, but there are " +
                       std::to_string(options.ranks.count));
  }
  if (!options.clip_norm) return;
  if (options.clip_by == ClipBy::last_norm && options.precision == Precision::mixed_fp16)
    throw ValueError(
        "clipping by the last step's norm cannot go with fp16: whether a step overflowed is only "
        "known from its own");
  if (options.clip_by == ClipBy::two_backwards && options.accumulate > 1)
    throw ValueError(
        "clipping by two backwards cannot go with accumulation, which keeps all gradients anyway");
}

// Leaves out parameters that the loss does not depend on, as PyTorch's optimizers do: they are not
// decayed and have no optimizer state.
void keep_reached(std::vector<nn::NamedVariable>& parameters, std::vector<Tensor>& gradients) {
  std::vector<bool> reached;
  for (const Tensor& gradient : gradients) reached.push_back(static_cast<bool>(gradient));
  if (std::find(reached.begin(), reached.end(), true) == reached.end())
    throw ValueError(
        parameters.empty()
            ? "the model has no trainable parameters, so that no step can be taken"
            : fmt::format("the loss depends on none of the model's {} trainable parameters, of "
                          "which \"{}\" is the first: compute it from the model's results, and "
                          "without stop_gradient",
                          parameters.size(), parameters.front().path));
  keep_where(reached, parameters);
  keep_where(reached, gradients);
}

// A model in which fp8 would round nothing is trained in split_bf16 instead.
void require_fp8_products(const Graph& graph) {
  const Fp8Products products = fp8_products(graph);
  if (products.in_fp8 > 0) return;
  throw ValueError(fmt::format(
      "fp8 is for products of two matrices inside blocks, such as those of a transformer, of which "
      "this model has none{}; train it in split-bf16",
      products.others.empty()
          ? ""
          : fmt::format(" that can be done in fp8: the first is \"{}\", {}",
                        products.others.front().path, products.others.front().obstacle)));
}

void require_coded_activations(const Graph& graph, const PassList& passes) {
  if (coded_activations(graph, passes).any()) return;
  throw ValueError(
      "activation_bits (--activation-bits) is for what backward reads of norms, activation "
      "functions, attention and products, but this step has nothing of that kind that would be "
      "smaller in 8 bits: leave it out");
}

// Backward's part of a loss would read codes, and the loss itself would change.
void require_no_gradient_inside(const Tensor& loss) {
  for (const auto& node : topological_order({{}, {loss}, {}}))
    if (node->marks().backward)
      throw ValueError(
          fmt::format("activation_bits (--activation-bits) is for losses without gradients inside, "
                      "but this one depends on a gradient{}: leave it out",
                      node->path().empty() ? "" : fmt::format(" at \"{}\"", node->path())));
}

// The options with the pass that they ask for.
TrainOptions with_passes(TrainOptions options) {
  if (!options.activation_bits) return options;
  check_activation_bits(*options.activation_bits);
  options.compile.passes = with_activation_codes(options.compile.passes.value_or(all_pass_names()));
  return options;
}

// Bytes that the step's plan keeps between runs and that `target` does not read.
Bytes kept_beside(const Tensor& target, const Plan& plan) {
  std::set<std::uint64_t> read;
  for (const auto& node : topological_order({{}, {target}, {}})) read.insert(node->id());
  Bytes total;
  for (const Buffer& buffer : plan.buffers)
    if (plan.persists(buffer) &&
        !(buffer.place.leaf && read.contains(plan.leaves[buffer.place.leaf].node)))
      total += Storage::reservation(plan.device, buffer.size);
  return total;
}

StepRules rules_of(const TrainOptions& options) {
  StepRules rules{.precision = options.precision,
                  .loss_scale = {},
                  .clip_norm = options.clip_norm,
                  .clip_by = options.clip_by,
                  .guard = options.guard};
  if (options.precision == Precision::mixed_fp16) rules.loss_scale = options.loss_scale;
  return rules;
}

}  // namespace

std::atomic<std::int64_t>& traced_steps() {
  static std::atomic<std::int64_t> count = 0;
  return count;
}

struct TrainStep::State {
  nn::ModuleBase& model;
  optim::Optimizer optimizer;
  LossFunction loss;
  TrainOptions options;
  optim::StateStore store;
  std::int64_t step = 0, optimizer_start = 0;

  ProgramsByShape programs;
  std::unique_ptr<WeightMasks> masks;  // null: all weights are trained
  bool masks_applied = false;
  std::optional<ParameterRanges> weights;  // with Shard::parameters

  // `like` is a batch, or the types of one.
  template <class Like>
  Program& program_for(const Like& like) {
    if (weights) weights->take_over();
    return programs.program(like, [&](const auto& types) { return trace(types); });
  }

  // The names of a step's numbers, which are the same for all shapes.
  std::vector<std::string> names;
  // The number of that name in the step that was run last; empty if steps do not give it.
  std::optional<double> number(const Program& program, std::string_view name) const {
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) return {};
    return program.scalar(static_cast<int>(at - names.begin()));
  }

  // Inputs: the batch, then the rate and the step count, then with RigL the share of weights that
  // are exchanged. Outputs: the loss, then the norm with
  // clipping, then the scale with fp16, then whether the step was taken, if loss and norm do not
  // determine that.
  Graph trace(const std::vector<TensorType>& types) {
    ++traced_steps();
    const TraceScope fresh;
    const nn::ForwardScope forward(nn::Mode::train);
    free_unused_state();
    StepGraph result;
    const Batch batch = placeholders(types, model.device());
    const Tensor rate = input({{}, f64}, "rate", model.device()),
                 count = input({{}, f64}, "step", model.device());
    result.graph.inputs = batch.tensors;
    result.graph.inputs.push_back(rate);
    result.graph.inputs.push_back(count);
    const Tensor exchange = exchanges() ? input({{}, f64}, "exchange", model.device()) : Tensor{};
    if (exchange) result.graph.inputs.push_back(exchange);

    auto parameters = model.trainable_parameters();
    StepRules rules = rules_of(options);
    if (options.ranks.any())
      rules.norm = [&](const std::vector<Tensor>& gradients) {
        std::vector<Shape> shapes;
        for (const nn::NamedVariable& p : parameters) shapes.push_back(p.variable.shape());
        return reproducible_norm(gradients, shapes, options.ranks);
      };
    StepBuilder builder(rules, store, model.device());
    std::optional<LeafTrace> leaves;
    if (options.ranks.any()) leaves.emplace(batch, options.ranks);
    const Tensor whole_weight = leaves ? weight_of_leaves(*leaves) : Tensor{};
    const auto share = [&](const MicroBatch& part) {
      const Tensor mean = loss(part.batch);
      return share_of(part, batch, whole_weight,
                      builder.at_precision()(mean, statistics_dtype(mean.dtype())));
    };
    LossGradients traced = leaves ? builder.gradients(*leaves, tensors_of(parameters), share)
                                  : builder.gradients(micro_batches(batch, options.accumulate),
                                                      tensors_of(parameters), share);
    result.tell("loss", traced.loss);
    if (options.activation_bits) require_no_gradient_inside(traced.loss);
    keep_reached(parameters, traced.gradients);
    std::optional<WeightMasks::InStep> in_step;
    if (masks) {
      masks->find(traced.loss, parameters, optimizer);
      in_step = masks->in_step(parameters, traced.gradients, exchange);
      WeightMasks::apply(*in_step, traced.gradients);
    }

    const Tensor sound = options.guard == UpdateGuard::none ? Tensor{} : is_finite(traced.loss);
    const GradientScaling scaling =
        builder.scale_gradients(traced.gradients, traced.scale, sound, count);
    if (options.clip_norm) result.tell("gradient_norm", scaling.norm);
    if (builder.scaler()) result.tell("loss_scale", builder.loss_scale());
    if (builder.scaler() || options.guard == UpdateGuard::gradients)
      result.tell("taken", scaling.taken);
    if (options.clip_norm && options.clip_by == ClipBy::two_backwards)
      traced.gradients = gradients_again(traced, tensors_of(parameters));
    if (in_step && options.clip_by == ClipBy::two_backwards)
      WeightMasks::apply(*in_step, traced.gradients);
    const auto add = [&](const std::vector<Update>& updates) {
      result.graph.updates.insert(result.graph.updates.end(), updates.begin(), updates.end());
    };
    add(scaling.updates);
    if (in_step) {
      add(WeightMasks::updates(*in_step, scaling.taken));
      add(masks->movement(parameters, traced.gradients, scaling.factor));
    }
    if (options.ranks.shards(Shard::state))
      add(sharded_updates(optimizer, parameters, traced.gradients, rate, scaling.step,
                          scaling.factor, store, options.ranks, ranges()));
    else
      add(optimizer.updates(parameters, traced.gradients, rate, scaling.step, scaling.factor,
                            store));
    add(builder.buffer_updates(leaves && options.ranks.count > 1
                                   ? chained_updates(leaves->buffers, options.ranks, leaves->blocks)
                                   : forward.updates(),
                               sound));
    names = std::move(result.names);
    if (options.precision == Precision::fp8) require_fp8_products(result.graph);
    if (options.activation_bits) require_coded_activations(result.graph, *options.compile.passes);
    return weights ? weights->gathered(result.graph) : std::move(result.graph);
  }

  const ParameterRanges* ranges() const { return weights ? &*weights : nullptr; }

  bool exchanges() const { return masks && masks->how().method == MaskMethod::rigl; }
  // The numbers that a step gets after its batch, in the order of `trace`: their count, and the
  // numbers. The optimizer's steps count from 1.
  int number_count() const { return exchanges() ? 3 : 2; }
  std::array<double, 3> numbers(std::int64_t at) const {
    return {optimizer.rate() * options.schedule->factor(at),
            static_cast<double>(at + 1 - optimizer_start),
            exchanges() ? masks->how().exchange_after(at + 1).value_or(-1.0) : -1.0};
  }

  void feed(Program& program, const Batch& batch) const {
    const int fields = static_cast<int>(batch.tensors.size());
    for (int i = 0; i < fields; ++i) program.feed(i, batch.tensors[static_cast<std::size_t>(i)]);
    const std::array<double, 3> all = numbers(step);
    for (int i = 0; i < number_count(); ++i)
      program.feed(fields + i, all[static_cast<std::size_t>(i)]);
    program.set_step(static_cast<std::uint64_t>(step));
  }

  // Before the first step of this object: applies a change that is due after 0 steps, and masks
  // that were loaded from a file.
  void apply_masks() {
    if (!masks || masks_applied) return;
    masks->change(step, optimizer, programs.options(), WeightMasks::When::start);
    masks_applied = true;
  }
  void count_step() {
    ++step;
    if (masks) masks->change(step, optimizer, programs.options(), WeightMasks::When::after_step);
  }

  // The parameters as the optimizer sees them: ranges if the state is sharded.
  std::vector<nn::NamedVariable> optimized() const {
    const auto parameters = model.trainable_parameters();
    return options.ranks.shards(Shard::state) ? ranges_of(parameters, options.ranks, ranges())
                                              : parameters;
  }

 private:
  // Frees state that neither this optimizer nor the step uses, so that no plan counts it.
  void free_unused_state() {
    std::set<std::string> used;
    for (const nn::NamedVariable& p : model.trainable_parameters())
      for (const optim::StateField& field : optimizer.state(p))
        used.insert(p.path + '.' + std::string(field.name));
    const bool scales = options.precision == Precision::mixed_fp16;
    const bool clips = options.clip_norm && options.clip_by == ClipBy::last_norm;
    store.keep_only([&](const std::string& path) {
      return used.contains(path) || (masks && masks->owns(path)) ||
             (scales && path.starts_with("loss_scale.")) || (clips && path == last_norm_path);
    });
  }

  // A part's share of the whole batch's mean.
  // `whole_weight`: of all leaves of all ranks; empty: that of `whole`.
  Tensor share_of(const MicroBatch& part, const Batch& whole, const Tensor& whole_weight,
                  const Tensor& mean) const {
    if (part.share == 1.0) return mean;
    if (!options.weight) return mean * part.share;
    const auto weight = [&](const Batch& b) {
      return cast(stop_gradient(options.weight(b)), mean.dtype());
    };
    // The mean of a micro-batch of weight 0 is undefined.
    const Tensor own = weight(part.batch), none = scalar_like(own, 0.0);
    return where(greater(own, none), mean, none) *
           (own / (whole_weight ? cast(whole_weight, mean.dtype()) : weight(whole)));
  }

  Tensor weight_of_leaves(const LeafTrace& trace) const {
    if (!options.weight || trace.blocks.leaves == 1) return {};
    LeafSums sums(trace.ranks, trace.blocks, LeafSums::Result::whole, {"weight_of_leaves"});
    for (const MicroBatch& leaf : trace.leaves)
      sums.add({cast(stop_gradient(options.weight(leaf.batch)), f32)});
    return sums.totals().front();
  }
};

TrainStep::TrainStep(nn::ModuleBase& model, optim::Optimizer optimizer, LossFunction loss,
                     TrainOptions options)
    : state_(new State{model,
                       optimizer.with_form(options.form.value_or(usual_form(options.precision))),
                       std::move(loss),
                       with_passes(options),
                       {},
                       0,
                       0,
                       ProgramsByShape(model.device(), with_passes(options).compile),
                       nullptr,
                       false,
                       {},
                       {}}) {
  check_options(model, options);
  if (options.sparse)
    state_->masks = std::make_unique<WeightMasks>(*options.sparse, state_->store, model.device());
  if (options.ranks.shards(Shard::parameters)) state_->weights.emplace(model, options.ranks);
  if (options.ranks.shards(Shard::state)) {
    if (options.form.value_or(usual_form(options.precision)).draws())
      throw ValueError(
          "state cannot be sharded while weights are rounded stochastically: the numbers drawn "
          "depend on an element's place in the whole tensor");
    require_elementwise(state_->optimizer);
    state_->optimizer = state_->optimizer.for_ranges_of(model.trainable_parameters());
  }
}
TrainStep::~TrainStep() = default;
TrainStep::TrainStep(TrainStep&&) noexcept = default;

StepResult TrainStep::operator()(const Batch& batch, const std::function<void()>& meanwhile) {
  State& s = *state_;
  Program& program = s.program_for(batch);
  s.apply_masks();
  StepResult result;
  result.rate = s.optimizer.rate() * s.options.schedule->factor(s.step);
  s.feed(program, batch);
  program.run(meanwhile);
  s.count_step();
  result.loss = *s.number(program, "loss");
  result.gradient_norm = s.number(program, "gradient_norm").value_or(result.gradient_norm);
  result.loss_scale = s.number(program, "loss_scale").value_or(result.loss_scale);
  if (const auto taken = s.number(program, "taken"))
    result.skipped = *taken == 0.0;
  else if (s.options.guard == UpdateGuard::loss)
    result.skipped = !std::isfinite(result.loss) ||
                     (s.options.clip_norm && s.options.clip_by != ClipBy::last_norm &&
                      !std::isfinite(result.gradient_norm));
  return result;
}

std::optional<NonFinite> TrainStep::find_non_finite(const Batch& batch) {
  State& s = *state_;
  // The search runs other programs on a single rank, which cannot exchange anything.
  if (s.options.ranks.count > 1) return {};
  const Graph graph = s.trace(batch.types());
  std::vector<Tensor> inputs = batch.tensors;
  const std::array<double, 3> numbers = s.numbers(s.step - 1);
  for (int i = 0; i < s.number_count(); ++i)
    inputs.push_back(Tensor::from(std::vector<double>{numbers[static_cast<std::size_t>(i)]}, {}));
  // First the loss, then, with clipping, the norm of the gradients.
  for (const Tensor& target : graph.outputs) {
    CompileOptions options = s.programs.options();
    if (std::optional<Bytes>& budget = options.plan.budget)
      budget = std::max(Bytes{1}, *budget - kept_beside(target, plan(batch.types())));
    if (const auto found = ebb::find_non_finite(graph, target, inputs,
                                                static_cast<std::uint64_t>(s.step - 1), options))
      return found;
  }
  return {};
}

bool TrainStep::intact() const {
  bool intact = true;
  state_->programs.each_compiled([&](const Program& program) { intact &= program.intact(); });
  return intact;
}

void TrainStep::expect(const Batch& next) {
  // Shapes without a program yet are ignored.
  Program* program = state_->programs.find(next);
  for (std::size_t i = 0; program && i < next.tensors.size(); ++i)
    program->expect(static_cast<int>(i), next.tensors[i]);
}

std::vector<double> TrainStep::timed(const Batch& batch) {
  State& s = *state_;
  Program& program = s.program_for(batch);
  s.apply_masks();
  s.feed(program, batch);
  std::vector<double> times = program.timed_run();
  s.count_step();
  return times;
}

const Plan& TrainStep::plan(const std::vector<TensorType>& batch) {
  return state_->programs.plan(batch, [&](const auto& types) { return state_->trace(types); });
}
Graph TrainStep::trace(const std::vector<TensorType>& batch) { return state_->trace(batch); }
const std::shared_ptr<Arena>& TrainStep::arena() const { return state_->programs.options().arena; }
const Leaves& TrainStep::leaves(const std::vector<TensorType>& batch) {
  return state_->program_for(batch).leaves();
}
Bytes TrainStep::resident(const std::vector<TensorType>& batch) {
  return state_->program_for(batch).resident();
}
ByTier<Bytes> TrainStep::held(const std::vector<TensorType>& batch) {
  return state_->program_for(batch).held();
}
Program::FileTraffic TrainStep::file_traffic(const std::vector<TensorType>& batch) {
  return state_->program_for(batch).file_traffic();
}
optim::StateStore& TrainStep::optimizer_state() { return state_->store; }
std::vector<nn::NamedVariable> TrainStep::weights() {
  State& s = *state_;
  std::vector<nn::NamedVariable> all = s.model.parameters();
  if (!s.weights) return all;
  s.weights->take_over();
  for (nn::NamedVariable& p : all)
    if (const Variable range = s.weights->of(p)) p.variable = range;
  return all;
}
Graph TrainStep::gathered(const Graph& graph) const {
  return state_->weights ? state_->weights->gathered(graph) : graph;
}
void TrainStep::make_state() {
  State& s = *state_;
  const Device device = s.model.device();
  for (const nn::NamedVariable& p : s.optimized())
    for (const optim::StateField& field : s.optimizer.state(p))
      s.store.get(p.path + '.' + std::string(field.name), field.type, device, field.initial);
  if (s.options.precision == Precision::mixed_fp16)
    LossScaler(s.options.loss_scale, s.store, device);
  if (s.options.clip_norm && s.options.clip_by == ClipBy::last_norm)
    s.store.get(std::string(last_norm_path), {{}, f32}, device);
  if (s.masks) s.masks->make_state();
}
const optim::Optimizer& TrainStep::optimizer() const { return state_->optimizer; }
std::int64_t TrainStep::step() const { return state_->step; }
std::int64_t TrainStep::optimizer_start() const { return state_->optimizer_start; }
void TrainStep::set_step(std::int64_t step, std::int64_t optimizer_start) {
  state_->step = step, state_->optimizer_start = optimizer_start;
}
const TrainOptions& TrainStep::options() const { return state_->options; }
TrainStep::MaskCounts TrainStep::mask_counts() const {
  return state_->masks ? state_->masks->counts() : MaskCounts{};
}
std::map<std::string, Variable> TrainStep::masks() {
  return state_->masks ? state_->masks->by_path() : std::map<std::string, Variable>{};
}

}  // namespace ebb
