#include "ebb/train/eval_step.h"

#include "ebb/ops.h"
#include "train/programs_by_shape.h"

namespace ebb {

struct EvalStep::State {
  nn::ModuleBase& model;
  Metrics metrics;
  std::function<Graph(const Graph&)> rewrite;
  ProgramsByShape programs;

  Graph trace(const std::vector<TensorType>& types) const {
    const TraceScope fresh;
    const nn::ForwardScope forward(nn::Mode::evaluate);
    Graph graph;
    const Batch batch = placeholders(types, model.device());
    graph.inputs = batch.tensors;
    for (const Tensor& metric : metrics(batch)) graph.outputs.push_back(cast(metric, f64));
    return rewrite ? rewrite(graph) : graph;
  }
};

EvalStep::EvalStep(nn::ModuleBase& model, Metrics metrics, CompileOptions options,
                   std::function<Graph(const Graph&)> rewrite)
    : state_(new State{model, std::move(metrics), std::move(rewrite),
                       ProgramsByShape(model.device(), std::move(options))}) {}
EvalStep::~EvalStep() = default;
EvalStep::EvalStep(EvalStep&&) noexcept = default;

const Plan& EvalStep::plan(const std::vector<TensorType>& batch) {
  return state_->programs.plan(batch, [&](const auto& types) { return state_->trace(types); });
}

std::vector<double> EvalStep::operator()(const Batch& batch) {
  State& s = *state_;
  Program& program = s.programs.program(batch, [&](const auto& types) { return s.trace(types); });
  program.run(batch.tensors);
  std::vector<double> values;
  for (int i = 0; i < static_cast<int>(program.plan().outputs.size()); ++i)
    values.push_back(program.scalar(i));
  return values;
}

}  // namespace ebb
