#include "ebb/train/train_step.h"

#include <fmt/format.h>

#include <algorithm>

#include "ebb/error.h"
#include "ebb/grad.h"
#include "ebb/ops.h"
#include "train/programs_by_shape.h"

namespace ebb {

std::vector<TensorType> Batch::types() const {
  std::vector<TensorType> result;
  for (const Tensor& t : tensors) result.push_back(t.type());
  return result;
}

namespace {

struct MicroBatch {
  Batch batch;
  double share = 1.0;  // of the whole batch's items
};

// At most `parts` of them, nearly equal: 10 items in 4 parts are 3, 3, 2 and 2.
std::vector<MicroBatch> micro_batches(const Batch& whole, std::int64_t parts) {
  if (parts < 1)
    throw ValueError(
        fmt::format("a step has at least one micro-batch, but {} were asked for", parts));
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

}  // namespace

struct TrainStep::State {
  nn::ModuleBase& model;
  optim::Optimizer optimizer;
  LossFunction loss;
  TrainOptions options;
  optim::StateStore store;
  std::int64_t step = 0;

  ProgramsByShape programs;

  // `like` is a batch, or the types of one.
  template <class Like>
  Program& program_for(const Like& like) {
    return programs.program(like, [&](const auto& types) { return trace(types); });
  }

  // Inputs: the batch, then the rate and the step count. Outputs: the loss and, with clipping, the
  // norm.
  Graph trace(const std::vector<TensorType>& types) {
    const TraceScope fresh;
    const nn::ForwardScope forward(nn::Mode::train);
    Graph graph;
    const Batch batch = placeholders(types, model.device());
    const Tensor rate = input({{}, f64}, "rate", model.device()),
                 count = input({{}, f64}, "step", model.device());
    graph.inputs = batch.tensors;
    graph.inputs.push_back(rate);
    graph.inputs.push_back(count);

    const auto parameters = model.trainable_parameters();
    std::vector<Tensor> targets, gradients;
    for (const nn::NamedVariable& p : parameters) targets.push_back(p.variable);
    Tensor total;
    for (const MicroBatch& part : micro_batches(batch, options.accumulate)) {
      const Tensor mean = loss(part.batch), share = part.share == 1.0 ? mean : mean * part.share;
      total = total ? total + share : share;
      gradients = gradients.empty() ? grad(share, targets) : grad_onto(gradients, share, targets);
      for (const Tensor& gradient : gradients) gradient.node()->set_category(Category::gradients);
    }

    graph.outputs.push_back(cast(total, f64));
    Tensor scale;
    if (options.clip_norm) {
      const Tensor norm = optim::global_norm(gradients);
      graph.outputs.push_back(cast(norm, f64));
      scale = optim::clip_scale(norm, *options.clip_norm);
    }
    graph.updates = optimizer.updates(parameters, gradients, rate, count, scale, store);
    for (const Update& update : forward.updates()) graph.updates.push_back(update);
    return graph;
  }
};

TrainStep::TrainStep(nn::ModuleBase& model, optim::Optimizer optimizer, LossFunction loss,
                     TrainOptions options)
    : state_(new State{model,
                       std::move(optimizer),
                       std::move(loss),
                       options,
                       {},
                       0,
                       ProgramsByShape(model.device(), options.compile)}) {}
TrainStep::~TrainStep() = default;
TrainStep::TrainStep(TrainStep&&) noexcept = default;

StepResult TrainStep::operator()(const Batch& batch) {
  State& s = *state_;
  Program& program = s.program_for(batch);
  StepResult result;
  result.rate = s.optimizer.rate() * s.options.schedule->factor(s.step);
  const int fields = static_cast<int>(batch.tensors.size());
  for (int i = 0; i < fields; ++i) program.feed(i, batch.tensors[static_cast<std::size_t>(i)]);
  program.feed(fields, result.rate);
  program.feed(fields + 1, static_cast<double>(s.step + 1));
  program.set_step(static_cast<std::uint64_t>(s.step));
  program.run();
  ++s.step;
  result.loss = program.scalar(0);
  if (s.options.clip_norm) result.gradient_norm = program.scalar(1);
  return result;
}

const Plan& TrainStep::plan(const std::vector<TensorType>& batch) {
  return state_->programs.plan(batch, [&](const auto& types) { return state_->trace(types); });
}
Graph TrainStep::trace(const std::vector<TensorType>& batch) { return state_->trace(batch); }
const std::shared_ptr<Arena>& TrainStep::arena() const { return state_->programs.options().arena; }
Bytes TrainStep::resident(const std::vector<TensorType>& batch) {
  return state_->program_for(batch).resident();
}
optim::StateStore& TrainStep::optimizer_state() { return state_->store; }
std::int64_t TrainStep::step() const { return state_->step; }
void TrainStep::set_step(std::int64_t step) { state_->step = step; }
const TrainOptions& TrainStep::options() const { return state_->options; }

}  // namespace ebb
