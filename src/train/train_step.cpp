#include "ebb/train/train_step.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "ebb/error.h"
#include "ebb/grad.h"
#include "ebb/node.h"
#include "ebb/ops.h"
#include "ops/loss/loss.h"
#include "train/programs_by_shape.h"
#include "train/trace_count.h"
#include "train/usual_form.h"

namespace ebb {

std::vector<TensorType> Batch::types() const {
  std::vector<TensorType> result;
  for (const Tensor& t : tensors) result.push_back(t.type());
  return result;
}

namespace {

// The path of the state that clipping by the last step's norm keeps.
const std::string last_norm_path = "clip.last_norm";

// x - x is NaN for infinities and NaN.
Tensor is_finite(const Tensor& number) {
  const Tensor difference = number - number;
  return equal(difference, zeros_like(difference));
}

struct MicroBatch {
  Batch batch;
  double share = 1.0;  // of the whole batch's items
};

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
  if (options.precision != Precision::fp32) {
    const DType expected = parameter_dtype(options.precision);
    for (const nn::NamedVariable& p : model.trainable_parameters())
      if (p.variable.dtype() != expected)
        throw DTypeError(fmt::format("training in {} needs a model made in {}, but {} is {}",
                                     name(options.precision), name(expected), p.path,
                                     to_string(p.variable.type())));
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

// At most `parts` of them, nearly equal: 10 items in 4 parts are 3, 3, 2 and 2.
std::vector<MicroBatch> micro_batches(const Batch& whole, std::int64_t parts) {
  if (parts == 1) return {{whole, 1.0}};
  std::int64_t items = -1;
  for (const Tensor& t : whole.tensors) {
    const std::int64_t count = t.rank() > 0 ? t.shape()[0] : 0;
    if (items >= 0 && count != items)
      throw ShapeError(
          fmt::format("to be cut into micro-batches, all tensors of a batch must have as "
                      "many items, but {} and {} came",
                      items, count));
    items = count;
  }
  parts = std::max<std::int64_t>(1, std::min(parts, items));
  std::vector<MicroBatch> result;
  for (std::int64_t i = 0, begin = 0; i < parts; ++i) {
    const std::int64_t end = begin + items / parts + (i < items % parts ? 1 : 0);
    MicroBatch part;
    for (const Tensor& t : whole.tensors) part.batch.tensors.push_back(slice(t, 0, begin, end));
    part.share = static_cast<double>(end - begin) / static_cast<double>(items);
    result.push_back(std::move(part));
    begin = end;
  }
  return result;
}

void mark_gradients(const std::vector<Tensor>& gradients) {
  for (const Tensor& g : gradients)
    if (g) optim::as_made(g).node()->set_category(Category::gradients);
}

// Leaves out parameters that the loss does not depend on, as PyTorch's optimizers do: they are not
// decayed and have no optimizer state.
void keep_reached(std::vector<nn::NamedVariable>& parameters, std::vector<Tensor>& targets,
                  std::vector<Tensor>& gradients) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i]) continue;
    parameters[kept] = parameters[i], targets[kept] = targets[i], gradients[kept] = gradients[i];
    ++kept;
  }
  if (kept == 0)
    throw ValueError(
        parameters.empty()
            ? "the model has no trainable parameters, so that no step can be taken"
            : fmt::format("the loss depends on none of the model's {} trainable parameters, of "
                          "which \"{}\" is the first: compute it from the model's results, and "
                          "without stop_gradient",
                          parameters.size(), parameters.front().path));
  parameters.resize(kept), targets.resize(kept), gradients.resize(kept);
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

  // `like` is a batch, or the types of one.
  template <class Like>
  Program& program_for(const Like& like) {
    return programs.program(like, [&](const auto& types) { return trace(types); });
  }

  // Inputs: the batch, then the rate and the step count. Outputs: the loss, then the norm with
  // clipping, then the scale with fp16, then whether the step was taken, if loss and norm do not
  // determine that.
  Graph trace(const std::vector<TensorType>& types) {
    ++traced_steps();
    const TraceScope fresh;
    const nn::ForwardScope forward(nn::Mode::train);
    free_unused_state();
    Graph graph;
    const Batch batch = placeholders(types, model.device());
    const Tensor rate = input({{}, f64}, "rate", model.device()),
                 count = input({{}, f64}, "step", model.device());
    graph.inputs = batch.tensors;
    graph.inputs.push_back(rate);
    graph.inputs.push_back(count);

    std::optional<HalfPrecision> half;
    if (options.precision != Precision::fp32) half.emplace(product_dtype(options.precision));
    std::optional<LossScaler> scaler;
    if (options.precision == Precision::mixed_fp16)
      scaler.emplace(options.loss_scale, store, model.device());

    auto parameters = model.trainable_parameters();
    std::vector<Tensor> targets, gradients;
    for (const nn::NamedVariable& p : parameters) targets.push_back(p.variable);
    Tensor total, last;  // last: the scaled loss of the last micro-batch
    for (const MicroBatch& part : micro_batches(batch, options.accumulate)) {
      Tensor mean = loss(part.batch);
      if (half) mean = cast((*half)({mean})[0], statistics_dtype(mean.dtype()));
      const Tensor share = share_of(part, batch, mean);
      total = total ? total + share : share;
      last = scaler ? scaler->scaled(share) : share;
      gradients = gradients.empty() ? grad_where_reached(last, targets)
                                    : grad_onto(gradients, last, targets);
      mark_gradients(gradients);
    }
    graph.outputs.push_back(cast(total, f64));
    keep_reached(parameters, targets, gradients);

    const Tensor sound = options.guard == UpdateGuard::none ? Tensor{} : is_finite(total);
    const Scaling scaling = scale_gradients(gradients, count, scaler, sound, graph);
    if (options.clip_norm && options.clip_by == ClipBy::two_backwards) {
      gradients = grad(last, targets);
      mark_gradients(gradients);
    }
    for (const Update& update :
         optimizer.updates(parameters, gradients, rate, scaling.step, scaling.factor, store))
      graph.updates.push_back(update);
    for (const Update& update : forward.updates()) {
      const Tensor value = half ? (*half)({update.value})[0] : update.value;
      const Tensor next = cast(value, update.target.dtype());
      graph.updates.push_back({update.target, sound ? where(sound, next, update.target) : next});
    }
    return graph;
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
      return used.contains(path) || (scales && path.starts_with("loss_scale.")) ||
             (clips && path == last_norm_path);
    });
  }

  // A part's share of the whole batch's mean.
  Tensor share_of(const MicroBatch& part, const Batch& whole, const Tensor& mean) const {
    if (part.share == 1.0) return mean;
    if (!options.weight) return mean * part.share;
    const auto weight = [&](const Batch& b) {
      return cast(stop_gradient(options.weight(b)), mean.dtype());
    };
    // The mean of a micro-batch of weight 0 is undefined.
    const Tensor own = weight(part.batch), none = scalar_like(own, 0.0);
    return where(greater(own, none), mean, none) * (own / weight(whole));
  }

  // The factor for gradients, and the number of this step among the steps taken.
  struct Scaling {
    Tensor factor, step;
  };
  // `sound`: whether the loss is finite; empty without a guard.
  Scaling scale_gradients(const std::vector<Tensor>& gradients, const Tensor& count,
                          const std::optional<LossScaler>& scaler, const Tensor& sound,
                          Graph& graph) {
    Scaling scaling{{}, count};
    Tensor taken = sound;
    const auto guarded = [&](const Tensor& factor) {
      if (!taken) return factor;
      const Tensor wished = factor ? factor : full({}, 1.0, f32, model.device());
      return where(taken, wished, zeros_like(wished));  // at zero the optimizer does nothing
    };
    const bool by_gradients = options.guard == UpdateGuard::gradients;
    if (!scaler && !options.clip_norm && !by_gradients) {
      scaling.factor = guarded({});
      return scaling;
    }
    Tensor norm = optim::global_norm(gradients);
    if (scaler) {
      const LossScaler::Decision decision = scaler->decide(norm);
      norm = decision.norm, taken = decision.taken;
      scaling = {decision.gradient_scale, decision.step};
      graph.updates.insert(graph.updates.end(), decision.updates.begin(), decision.updates.end());
    } else if (sound && (by_gradients || options.clip_by != ClipBy::last_norm)) {
      taken = logical_and(sound, is_finite(norm));
    }
    if (options.clip_norm) {
      graph.outputs.push_back(cast(norm, f64));
      const Tensor clip = clip_factor(norm, sound, graph);
      scaling.factor = scaler ? where(taken, scaling.factor * clip, scaling.factor) : clip;
    }
    if (scaler)
      graph.outputs.push_back(cast(scaler->scale(), f64));
    else
      scaling.factor = guarded(scaling.factor);
    if (scaler || by_gradients) graph.outputs.push_back(cast(taken, f64));
    return scaling;
  }

  Tensor clip_factor(const Tensor& norm, const Tensor& sound, Graph& graph) {
    if (options.clip_by != ClipBy::last_norm) return optim::clip_scale(norm, *options.clip_norm);
    const Variable last = store.get(last_norm_path, norm.type(), model.device());
    graph.updates.push_back(
        {last, sound ? where(logical_and(sound, is_finite(norm)), norm, last) : norm});
    return optim::clip_scale(last, *options.clip_norm);
  }
};

TrainStep::TrainStep(nn::ModuleBase& model, optim::Optimizer optimizer, LossFunction loss,
                     TrainOptions options)
    : state_(new State{model,
                       optimizer.with_form(options.form.value_or(usual_form(options.precision))),
                       std::move(loss),
                       options,
                       {},
                       0,
                       0,
                       ProgramsByShape(model.device(), options.compile)}) {
  check_options(model, options);
}
TrainStep::~TrainStep() = default;
TrainStep::TrainStep(TrainStep&&) noexcept = default;

namespace {

// In the order of `State::trace`. `update` counts the optimizer's steps from 1.
void feed(Program& program, const Batch& batch, double rate, std::int64_t step,
          std::int64_t update) {
  const int fields = static_cast<int>(batch.tensors.size());
  for (int i = 0; i < fields; ++i) program.feed(i, batch.tensors[static_cast<std::size_t>(i)]);
  program.feed(fields, rate);
  program.feed(fields + 1, static_cast<double>(update));
  program.set_step(static_cast<std::uint64_t>(step));
}

}  // namespace

StepResult TrainStep::operator()(const Batch& batch, const std::function<void()>& meanwhile) {
  State& s = *state_;
  Program& program = s.program_for(batch);
  StepResult result;
  result.rate = s.optimizer.rate() * s.options.schedule->factor(s.step);
  feed(program, batch, result.rate, s.step, s.step + 1 - s.optimizer_start);
  program.run(meanwhile);
  ++s.step;
  result.loss = program.scalar(0);
  int next = 1;
  if (s.options.clip_norm) result.gradient_norm = program.scalar(next++);
  const bool scales = s.options.precision == Precision::mixed_fp16;
  if (scales) result.loss_scale = program.scalar(next++);
  if (scales || s.options.guard == UpdateGuard::gradients)
    result.skipped = program.scalar(next++) == 0.0;
  else if (s.options.guard == UpdateGuard::loss)
    result.skipped = !std::isfinite(result.loss) ||
                     (s.options.clip_norm && s.options.clip_by != ClipBy::last_norm &&
                      !std::isfinite(result.gradient_norm));
  return result;
}

std::optional<NonFinite> TrainStep::find_non_finite(const Batch& batch) {
  State& s = *state_;
  const Graph graph = s.trace(batch.types());
  std::vector<Tensor> inputs = batch.tensors;
  const double rate = s.optimizer.rate() * s.options.schedule->factor(s.step - 1);
  for (const double number : {rate, static_cast<double>(s.step - s.optimizer_start)})
    inputs.push_back(Tensor::from(std::vector<double>{number}, {}));
  // First the loss, then, with clipping, the norm of the gradients.
  for (const Tensor& target : graph.outputs)
    if (const auto found = ebb::find_non_finite(
            graph, target, inputs, static_cast<std::uint64_t>(s.step - 1), s.programs.options()))
      return found;
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
  feed(program, batch, s.optimizer.rate() * s.options.schedule->factor(s.step), s.step,
       s.step + 1 - s.optimizer_start);
  std::vector<double> times = program.timed_run();
  ++s.step;
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
optim::StateStore& TrainStep::optimizer_state() { return state_->store; }
void TrainStep::make_state() {
  State& s = *state_;
  const Device device = s.model.device();
  for (const nn::NamedVariable& p : s.model.trainable_parameters())
    for (const optim::StateField& field : s.optimizer.state(p))
      s.store.get(p.path + '.' + std::string(field.name), field.type, device, field.initial);
  if (s.options.precision == Precision::mixed_fp16)
    LossScaler(s.options.loss_scale, s.store, device);
  if (s.options.clip_norm && s.options.clip_by == ClipBy::last_norm)
    s.store.get(last_norm_path, {{}, f32}, device);
}
const optim::Optimizer& TrainStep::optimizer() const { return state_->optimizer; }
std::int64_t TrainStep::step() const { return state_->step; }
std::int64_t TrainStep::optimizer_start() const { return state_->optimizer_start; }
void TrainStep::set_step(std::int64_t step, std::int64_t optimizer_start) {
  state_->step = step, state_->optimizer_start = optimizer_start;
}
const TrainOptions& TrainStep::options() const { return state_->options; }

}  // namespace ebb
