// From a graph to its plan: passes, and variants of ops where there is a choice.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>

#include "ebb/error.h"
#include "ebb/program.h"
#include "ops/leaf/leaf.h"
#include "passes/variants.h"

namespace ebb {

namespace {

void check(const Graph& graph, const CompileOptions& options) {
  check_names(options.variants);
  for (const Tensor& input : graph.inputs)
    if (!input || &input.node()->op() != &input_op())
      throw ValueError("[compile] graph inputs must be made with input()");
  for (std::size_t i = 0; i < graph.inputs.size(); ++i)
    if (std::find(graph.inputs.begin(), graph.inputs.begin() + static_cast<std::ptrdiff_t>(i),
                  graph.inputs[i]) != graph.inputs.begin() + static_cast<std::ptrdiff_t>(i))
      throw ValueError(fmt::format("[compile] input \"{}\" is given twice",
                                   graph.inputs[i].node()->attributes().as<LeafAttributes>().name));
  for (std::size_t i = 0; i < graph.outputs.size(); ++i)
    if (!graph.outputs[i])
      throw ValueError(fmt::format("[compile] output {} is an empty tensor", i));
  for (std::size_t i = 0; i < graph.updates.size(); ++i) {
    const Update& update = graph.updates[i];
    if (!update.target || !update.value)
      throw ValueError(fmt::format("[compile] update {} has an empty {}", i,
                                   update.target ? "value" : "target"));
    if (update.target.type() != update.value.type())
      throw ShapeError(fmt::format("[compile] variable \"{}\" is {}, but its update is {}",
                                   update.target.path(), to_string(update.target.type()),
                                   to_string(update.value.type())));
    for (std::size_t k = 0; k < i; ++k)
      if (graph.updates[k].target == update.target)
        throw ValueError(
            fmt::format("[compile] variable \"{}\" has two updates", update.target.path()));
  }
  for (const auto& node : topological_order(graph))
    if (&node->op() == &input_op() &&
        std::find(graph.inputs.begin(), graph.inputs.end(), Tensor(node, 0)) == graph.inputs.end())
      throw ValueError(
          fmt::format("[compile] the graph reads input \"{}\", which is not among its inputs",
                      node->attributes().as<LeafAttributes>().name));
}

PlanOptions plan_options(const CompileOptions& options) {
  PlanOptions result = options.plan;
  result.pages = options.machine.pages();
  return result;
}

// A graph after its passes, whose variants are still to be chosen.
class Step {
 public:
  Step(const Graph& graph, const CompileOptions& options) {
    std::vector<PassEffect> effects;
    whole_ = run_passes(graph, options.passes, &effects);
    PassList lean = options.passes;
    for (const PassEffect& effect : effects)
      if (effect.pass->raises_peak && effect.nodes_before != effect.nodes_after)
        std::erase(lean, effect.pass->name);
    if (lean.size() < options.passes.size()) lean_ = run_passes(graph, lean);
    choosable_ = variants_to_choose_from(whole_);
    for (const auto& [op, variant] : options.variants) choosable_.erase(op);
    fastest_ = options.variants;
    for (const auto& [op, variants] : choosable_) fastest_[op] = variants.front();
  }

  // The variants that are the fastest where memory does not matter.
  const VariantChoice& fastest() const { return fastest_; }

  // Goes through the choices one op at a time: from the fastest, `better` says whether another is
  // taken in its place.
  void improve(const std::function<bool(const VariantChoice&)>& better) const {
    VariantChoice best = fastest_;
    for (const auto& [op, variants] : choosable_)
      for (std::size_t i = 1; i < variants.size(); ++i) {
        VariantChoice other = best;
        other[op] = variants[i];
        if (better(other)) best = std::move(other);
      }
  }

  // With all passes or, where the budget cannot be kept so, without those that raise the peak.
  PlanResult plan(const VariantChoice& choice, const PlanOptions& planning,
                  double faster_than = std::numeric_limits<double>::infinity()) const {
    PlanResult result = try_plan(with_variants(whole_, choice), planning, faster_than);
    if (result.plan || !result.least || !lean_) return result;
    return try_plan(with_variants(*lean_, choice), planning, faster_than);
  }

  // The graph with the smallest budget. A quick search tells which variants it has.
  Graph leanest(PlanOptions planning) const {
    const Graph& graph = lean_ ? *lean_ : whole_;
    Graph best = with_variants(graph, fastest_);
    planning.effort = Effort::quick;
    std::optional<Bytes> least;
    improve([&](const VariantChoice& choice) {
      if (!least) least = least_budget(best, planning);
      Graph other = with_variants(graph, choice);
      const Bytes bytes = least_budget(other, planning);
      if (bytes >= *least) return false;
      least = bytes, best = std::move(other);
      return true;
    });
    return best;
  }

 private:
  Graph whole_;
  std::optional<Graph> lean_;  // none where no pass has raised the peak
  std::map<std::string, std::vector<std::string>> choosable_;
  VariantChoice fastest_;
};

// The fastest plan within the budget over all variants, or the least budget of any.
PlanResult fastest_plan(const Step& step, const PlanOptions& planning) {
  PlanResult best = step.plan(step.fastest(), planning);
  if (!planning.budget) return best;
  step.improve([&](const VariantChoice& choice) {
    const double ms = best.plan ? best.plan->predicted_ms : std::numeric_limits<double>::infinity();
    PlanResult other = step.plan(choice, planning, ms);
    const bool better = best.plan
                            ? other.plan && other.plan->predicted_ms < ms
                            : other.plan || (other.least && other.least->bytes < best.least->bytes);
    if (better) best = std::move(other);
    return better;
  });
  return best;
}

}  // namespace

PlanResult try_plan_program(const Graph& graph, const CompileOptions& options) {
  check(graph, options);
  if (options.planner) return {options.planner(graph), {}};
  const auto begin = std::chrono::steady_clock::now();
  PlanResult result = fastest_plan(Step(graph, options), plan_options(options));
  if (result.plan)
    result.plan->made_in_ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

Plan plan_program(const Graph& graph, const CompileOptions& options) {
  PlanResult result = try_plan_program(graph, options);
  if (result.plan) return std::move(*result.plan);
  const PlanOptions planning = plan_options(options);
  throw BudgetError(*options.plan.budget,
                    least_budgets(Step(graph, options).leanest(planning), planning, result.least));
}

Bytes least_budget(const Graph& graph, const CompileOptions& options) {
  check(graph, options);
  return least_budget(Step(graph, options).leanest(plan_options(options)), plan_options(options));
}

LeastBudgets least_budgets(const Graph& graph, const CompileOptions& options) {
  check(graph, options);
  return least_budgets(Step(graph, options).leanest(plan_options(options)), plan_options(options));
}

}  // namespace ebb
