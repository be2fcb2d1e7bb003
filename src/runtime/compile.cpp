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
#include "plan/check.h"

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
    const PassList passes = options.passes.value_or(all_pass_names());
    whole_ = {run_passes(graph, passes, &effects), passes};
    PassList lean = passes;
    for (const PassEffect& effect : effects)
      if (effect.pass->raises_peak && effect.nodes_before != effect.nodes_after)
        std::erase(lean, effect.pass->name);
    if (lean.size() < passes.size()) lean_ = Passed{run_passes(graph, lean), lean};
    choosable_ = variants_to_choose_from(whole_.graph);
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
    PlanResult result = plan(whole_, choice, planning, faster_than);
    if (result.plan || !result.least || !lean_) return result;
    return plan(*lean_, choice, planning, faster_than);
  }

  // The graph with the smallest budget. A quick search tells which variants it has.
  Graph leanest(PlanOptions planning) const {
    const Graph& graph = lean_ ? lean_->graph : whole_.graph;
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
  struct Passed {
    Graph graph;
    PassList passes;  // it went through
  };

  static PlanResult plan(const Passed& passed, const VariantChoice& choice,
                         const PlanOptions& planning, double faster_than) {
    PlanResult result = try_plan(with_variants(passed.graph, choice), planning, faster_than);
    if (result.plan) result.plan->passes = passed.passes;
    return result;
  }

  Passed whole_;
  std::optional<Passed> lean_;  // none where no pass has raised the peak
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

// Every way to choose one variant for each op.
std::vector<VariantChoice> all_choices(
    const std::map<std::string, std::vector<std::string>>& choosable) {
  std::vector<VariantChoice> choices{{}};
  for (const auto& [op, variants] : choosable) {
    std::vector<VariantChoice> longer;
    for (const VariantChoice& choice : choices)
      for (const std::string& variant : variants) longer.emplace_back(choice)[op] = variant;
    choices = std::move(longer);
  }
  return choices;
}

// The plan that somebody else has made, if it is of this graph and of these options.
Plan given_plan(const Graph& graph, const CompileOptions& options) {
  Plan plan = options.planner(graph);
  for (const Space& space : plan.spaces)
    if (space.pages != options.machine.pages())
      throw ValueError("[compile] the plan was made for memory in pages of another size");
  if (plan.tf32 != options.plan.tf32)
    throw ValueError(fmt::format("[compile] the plan was made {} TF32",
                                 plan.tf32 ? "for products in" : "without"));
  const Graph passed = run_passes(graph, plan.passes);
  std::optional<std::string> difference;
  for (const VariantChoice& choice : all_choices(variants_to_choose_from(passed))) {
    const std::optional<std::string> found = differs(plan, with_variants(passed, choice));
    if (!found) return plan;
    if (!difference) difference = found;
  }
  throw ValueError("[compile] the plan computes something else than its graph: " + *difference);
}

}  // namespace

PlanResult try_plan_program(const Graph& graph, const CompileOptions& options) {
  check(graph, options);
  if (options.planner) return {given_plan(graph, options), {}};
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
