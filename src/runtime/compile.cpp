// From a graph to its plan: passes, and the walks of the loss where there is a choice.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "ebb/error.h"
#include "ebb/ops.h"
#include "ebb/program.h"
#include "ops/leaf/leaf.h"
#include "passes/passes.h"
#include "plan/check.h"

namespace ebb {

const Op& linear_cross_entropy_op();

namespace {

void check(const Graph& graph, const CompileOptions& options) {
  if (options.loss_walks && *options.loss_walks != 1 && *options.loss_walks != 2)
    throw ValueError(
        fmt::format("[compile] loss_walks must be 1 or 2, but is {}", *options.loss_walks));
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

Graph optimise(const Graph& graph, const CompileOptions& options, int loss_walks) {
  if (!options.fuse) return insert_copies(graph);
  return insert_copies(fuse_pointwise(
      join_relu(join_sums(join_epilogues(pack_gradients(join_loss(graph, loss_walks)))))));
}

PlanOptions plan_options(const CompileOptions& options) {
  PlanOptions result = options.plan;
  result.pages = options.machine.pages();
  return result;
}

bool same(const Graph& a, const Graph& b) {
  return a.outputs == b.outputs &&
         std::equal(a.updates.begin(), a.updates.end(), b.updates.begin(), b.updates.end(),
                    [](const Update& x, const Update& y) { return x.value == y.value; });
}

// With small calls in groups, on devices where starting a kernel takes time. Their inputs live
// longer, so a budget that leaves no room for that is kept without groups.
Plan plan_in_groups(const Graph& separate, const CompileOptions& options,
                    const PlanOptions& planning) {
  if (!options.fuse || !options.group) return make_plan(separate, planning);
  const Graph grouped = group_small(separate, Device::Kind::cuda);
  try {
    return make_plan(grouped, planning);
  } catch (const BudgetError&) {
    if (same(grouped, separate)) throw;
    return make_plan(separate, planning);
  }
}

// How often the logits of a graph's loss may be made, the fastest first.
std::vector<int> loss_walks(const Graph& graph, const CompileOptions& options) {
  if (options.loss_walks) return {*options.loss_walks};
  for (const auto& node : topological_order(graph))
    if (&node->op() == &linear_cross_entropy_op() && node->device().kind == Device::Kind::cuda)
      return {1, 2};
  return {2};  // elsewhere kernels know best
}

// The fastest plan within a budget over all forms of the loss. A form whose step is longer without
// any recomputation than a plan that keeps the budget needs no plan of its own.
Plan fastest_plan(const Graph& graph, const CompileOptions& options,
                  const std::vector<int>& forms) {
  PlanOptions bounded = plan_options(options), free = bounded;
  free.budget.reset();
  free.recompute = {};
  std::optional<Plan> best;
  std::optional<BudgetError> refused;
  for (const int walks : forms) {
    const Graph step = optimise(graph, options, walks);
    if (best && best->predicted_ms <= plan_in_groups(step, options, free).predicted_ms) continue;
    try {
      Plan plan = plan_in_groups(step, options, bounded);
      if (!best || plan.predicted_ms < best->predicted_ms) best = std::move(plan);
    } catch (const BudgetError& error) {
      if (!refused || error.least < refused->least) refused = error;
    }
  }
  if (!best) throw *refused;
  return std::move(*best);
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
  std::optional<std::string> difference;
  for (const int walks : loss_walks(graph, options)) {
    const Graph separate = optimise(graph, options, walks);
    for (const Graph& form : {separate, group_small(separate, Device::Kind::cuda)}) {
      const std::optional<std::string> found = differs(plan, form);
      if (!found) return plan;
      if (!difference) difference = found;
    }
  }
  throw ValueError("[compile] the plan computes something else than its graph: " + *difference);
}

}  // namespace

Plan plan_program(const Graph& graph, const CompileOptions& options) {
  check(graph, options);
  if (options.planner) return given_plan(graph, options);
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<int> forms = loss_walks(graph, options);
  Plan plan =
      options.plan.budget && forms.size() > 1
          ? fastest_plan(graph, options, forms)
          : plan_in_groups(optimise(graph, options, forms.front()), options, plan_options(options));
  plan.made_in_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  return plan;
}

Bytes least_budget(const Graph& graph, const CompileOptions& options) {
  check(graph, options);
  const auto least = [&](int walks, Effort effort) {
    PlanOptions planning = plan_options(options);
    planning.effort = effort;
    return least_budget(optimise(graph, options, walks), planning);
  };
  const std::vector<int> forms = loss_walks(graph, options);
  const Effort effort = options.plan.effort;
  if (forms.size() == 1) return least(forms[0], effort);
  // A quick search tells which form is the leanest.
  std::vector<Bytes> quick;
  for (const int walks : forms) quick.push_back(least(walks, Effort::quick));
  const auto best = std::min_element(quick.begin(), quick.end());
  if (effort == Effort::quick) return *best;
  return least(forms[static_cast<std::size_t>(best - quick.begin())], effort);
}

}  // namespace ebb
