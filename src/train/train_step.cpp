#include "ebb/train/train_step.h"

#include "ebb/grad.h"
#include "ebb/ops.h"
#include "train/programs_by_shape.h"

namespace ebb {

std::vector<TensorType> Batch::types() const {
  std::vector<TensorType> result;
  for (const Tensor& t : tensors) result.push_back(t.type());
  return result;
}

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

    const Tensor total = loss(batch);
    const auto parameters = model.trainable_parameters();
    std::vector<Tensor> targets;
    for (const nn::NamedVariable& p : parameters) targets.push_back(p.variable);
    const std::vector<Tensor> gradients = grad(total, targets);
    for (const Tensor& gradient : gradients) gradient.node()->set_category(Category::gradients);

    graph.outputs.push_back(cast(total, f64));
    Tensor scale;
    if (options.clip_norm) {
      const Tensor norm = optim::global_norm(gradients);
      graph.outputs.push_back(cast(norm, f64));
      // PyTorch's rule: never scaled up, and a norm of zero is left alone.
      scale = minimum(scalar_like(norm, 1.0), *options.clip_norm / (norm + 1e-6));
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
