// From a graph to its plan: runs the passes, chooses variants of ops, and plans.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>

#include "core/backend.h"
#include "ebb/activation_bits.h"
#include "ebb/error.h"
#include "ebb/probe.h"
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

// All extensions of `choice` by one variant for each of the choosable ops.
std::vector<VariantChoice> all_choices(
    const std::map<std::string, std::vector<std::string>>& choosable, const VariantChoice& choice) {
  std::vector<VariantChoice> choices{choice};
  for (const auto& [op, variants] : choosable) {
    std::vector<VariantChoice> longer;
    for (const VariantChoice& shorter : choices)
      for (const std::string& variant : variants) longer.emplace_back(shorter)[op] = variant;
    choices = std::move(longer);
  }
  return choices;
}

std::optional<Device> device_of(const Graph& graph) {
  const auto order = topological_order(graph);
  return order.empty() ? std::nullopt : std::optional(order.front()->device());
}

// A graph after its passes, before the variants of its ops are chosen.
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
    planning_ = options.plan;
    planning_.pages = options.machine.pages();
    if (!planning_.tuning) find_tuning(options);
  }

  const PlanOptions& planning() const { return planning_; }

  // The variants that are fastest if memory does not matter.
  const VariantChoice& fastest() const { return fastest_; }

  // Coordinate search over variants: starts from the fastest ones and changes one op at a time.
  // `better` is called with each candidate and returns whether it replaces the best one so far.
  void improve(const std::function<bool(const VariantChoice&)>& better) const {
    VariantChoice best = fastest_;
    for (const auto& [op, variants] : choosable_)
      for (std::size_t i = 1; i < variants.size(); ++i) {
        VariantChoice other = best;
        other[op] = variants[i];
        if (better(other)) best = std::move(other);
      }
  }

  // Plans with all passes; if that cannot keep the budget without copies to other tiers, also
  // without the passes that raise the peak.
  PlanResult plan(const VariantChoice& choice,
                  double faster_than = std::numeric_limits<double>::infinity()) const {
    PlanResult result = plan(whole_, choice, faster_than);
    if (!lean_) return result;
    if (!result.plan) return result.least ? plan(*lean_, choice, faster_than) : result;
    if (!moves(*result.plan)) return result;
    // Copies may cost more than the passes that raise the peak save.
    PlanOptions resident = planning_;
    resident.offload = {};
    PlanResult lean =
        try_plan(with_variants(lean_->graph, choice), resident, result.plan->predicted_ms);
    if (!lean.plan || lean.plan->predicted_ms >= result.plan->predicted_ms) return result;
    lean.plan->passes = lean_->passes;
    return lean;
  }

  // The graph with the variants that have the smallest budget, found by quick searches.
  Graph leanest() const {
    PlanOptions planning = planning_;
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
    PassList passes;  // that it went through
  };

  // Whether anything lies outside the device.
  static bool moves(const Plan& plan) {
    return plan.held[Tier::host] > Bytes{} || plan.held[Tier::disk] > Bytes{};
  }

  // Planning itself does not use the device. If the device is in this machine, its libraries are
  // tuned first, for all variants and pass lists that may be planned.
  void find_tuning(const CompileOptions& options) {
    const std::optional<Device> device = device_of(whole_.graph);
    if (!device || !backend_of(*device).can_be_tuned(*device)) return;
    for (const VariantChoice& choice : all_choices(choosable_, fastest_))
      for (const Passed* passed : {&whole_, lean_ ? &*lean_ : nullptr})
        if (passed)
          planning_.tuning = tune(with_variants(passed->graph, choice), planning_, options.tell);
  }

  PlanResult plan(const Passed& passed, const VariantChoice& choice, double faster_than) const {
    PlanResult result = try_plan(with_variants(passed.graph, choice), planning_, faster_than);
    if (result.plan) result.plan->passes = passed.passes;
    return result;
  }

  Passed whole_;
  std::optional<Passed> lean_;  // without passes that raise the peak; none if they changed nothing
  std::map<std::string, std::vector<std::string>> choosable_;
  VariantChoice fastest_;
  PlanOptions planning_;
};

// The fastest plan found within the budget over all variants; if there is none, the smallest budget
// found.
PlanResult search(const Step& step) {
  PlanResult best = step.plan(step.fastest());
  if (!step.planning().budget) return best;
  step.improve([&](const VariantChoice& choice) {
    const double ms = best.plan ? best.plan->predicted_ms : std::numeric_limits<double>::infinity();
    PlanResult other = step.plan(choice, ms);
    const bool better = best.plan
                            ? other.plan && other.plan->predicted_ms < ms
                            : other.plan || (other.least && other.least->bytes < best.least->bytes);
    if (better) best = std::move(other);
    return better;
  });
  return best;
}

// The same, with the time since `begin` in the plan.
PlanResult fastest_plan(const Step& step, std::chrono::steady_clock::time_point begin) {
  PlanResult result = search(step);
  if (result.plan)
    result.plan->made_in_ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

// The plan from `options.planner`. Throws if it does not fit the graph or the options.
Plan given_plan(const Graph& graph, const CompileOptions& options) {
  Plan plan = options.planner(graph);
  for (const Space& space : plan.spaces)
    if (space.pages != options.machine.pages())
      throw ValueError("[compile] the plan was made for memory in pages of another size");
  if (plan.tf32 != options.plan.tf32)
    throw ValueError(fmt::format("[compile] the plan was made {} TF32",
                                 plan.tf32 ? "for products in" : "without"));
  // Other passes change no result.
  const auto codes = [](const PassList& passes) {
    return std::ranges::find(passes, activation_codes_pass) != passes.end();
  };
  if (codes(plan.passes) != codes(options.passes.value_or(all_pass_names())))
    throw ValueError(fmt::format("[compile] the plan was made {} activations in 8 bits",
                                 codes(plan.passes) ? "for" : "without"));
  const Graph passed = [&] {
    try {
      return run_passes(graph, plan.passes);
    } catch (const ValueError& error) {
      throw ValueError(fmt::format("[compile] the plan's list of passes: {}", error.what()));
    }
  }();
  std::optional<std::string> difference;
  for (const VariantChoice& choice : all_choices(variants_to_choose_from(passed), {})) {
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
  return fastest_plan(Step(graph, options), begin);
}

Plan plan_program(const Graph& graph, const CompileOptions& options) {
  check(graph, options);
  if (options.planner) return given_plan(graph, options);
  const auto begin = std::chrono::steady_clock::now();
  const Step step(graph, options);
  PlanResult result = fastest_plan(step, begin);
  if (result.plan) return std::move(*result.plan);
  throw BudgetError(*options.plan.budget,
                    least_budgets(step.leanest(), step.planning(), result.least));
}

Bytes least_budget(const Graph& graph, const CompileOptions& options) {
  check(graph, options);
  const Step step(graph, options);
  return least_budget(step.leanest(), step.planning());
}

LeastBudgets least_budgets(const Graph& graph, const CompileOptions& options) {
  check(graph, options);
  const Step step(graph, options);
  return least_budgets(step.leanest(), step.planning());
}

}  // namespace ebb
