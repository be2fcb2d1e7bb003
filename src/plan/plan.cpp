#include "ebb/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <unordered_map>
#include <utility>

#include "ops/leaf/leaf.h"
#include "plan/offload/tiers.h"
#include "plan/planner.h"

namespace ebb {
namespace {

// Options for finding a budget: with any budget set, the default strategy becomes automatic.
PlanOptions as_if_bounded(PlanOptions options) {
  if (!options.budget) options.budget = Bytes{};
  return options;
}

}  // namespace

Bytes CategoryBytes::total() const {
  Bytes sum;
  for (Bytes value : values) sum += value;
  return sum;
}

bool share_bytes(const Buffer& a, const Buffer& b) {
  return a.place.space && a.place.space == b.place.space &&
         a.place.offset < b.place.offset + b.size && b.place.offset < a.place.offset + a.size;
}

Bytes leaf_size(const TensorType& type, Tier tier) {
  return round_up(type.bytes(), tier == Tier::device ? buffer_alignment : file_alignment);
}

Bytes Plan::arena() const { return spaces.empty() ? Bytes{} : spaces[arena_space].size; }

Tier Plan::tier_of(const Buffer& buffer) const {
  if (buffer.place.space) return spaces[buffer.place.space].tier;
  return buffer.place.leaf ? leaves[buffer.place.leaf].tier : Tier::device;
}
double Plan::fragmentation() const {
  return live_peak.count > 0
             ? static_cast<double>(arena().count) / static_cast<double>(live_peak.count)
             : 1.0;
}
double Plan::overhead() const {
  return predicted_keep_all_ms > 0.0 ? predicted_ms / predicted_keep_all_ms : 1.0;
}
int Plan::recomputed_nodes() const {
  return static_cast<int>(std::count_if(instructions.begin(), instructions.end(),
                                        [](const Instruction& i) { return i.recomputed; }));
}

BudgetError::BudgetError(Bytes asked, const LeastBudgets& smallest)
    : MemoryError(
          fmt::format("a budget of {} cannot be kept: {}", to_string(asked), to_string(smallest))),
      budget(asked),
      least(smallest.least.bytes),
      kept(smallest) {}

std::string to_string(const LeastBudgets& budgets) {
  const auto& [least, fast] = budgets;
  std::string text = fmt::format(
      "the smallest that can is {} ({} bytes), at {:.2f} × the time of "
      "keeping all",
      to_string(least.bytes), least.bytes.count, least.overhead);
  if (fast.bytes > least.bytes)
    text += fmt::format("; {} ({} bytes) is enough for {:.2f} ×", to_string(fast.bytes),
                        fast.bytes.count, fast.overhead);
  return text;
}

std::unordered_map<std::uint64_t, Tier> homes_of(const Plan& plan) {
  std::unordered_map<std::uint64_t, Tier> homes;
  for (const Leaf& leaf : plan.leaves)
    if (leaf.kind == Leaf::Kind::variable) homes[leaf.node] = leaf.tier;
  return homes;
}

Leaves leaves_of(const Plan& plan, const Graph& graph) {
  std::unordered_map<std::uint64_t, std::shared_ptr<Node>> nodes;
  for (const auto& node : topological_order(graph))
    if (is_leaf(node->op())) nodes.emplace(node->id(), node);
  Leaves leaves;
  for (const Leaf& leaf : plan.leaves) {
    const auto found = nodes.find(leaf.node);
    if (found == nodes.end())
      throw ValueError(fmt::format(
          "[compile] the plan is of another graph: there is no \"{}\" in this one", leaf.path));
    leaves.push_back(found->second);
  }
  return leaves;
}

Plan make_plan(const Graph& graph, const PlanOptions& options) {
  PlanResult result = try_plan(graph, options);
  if (!result.plan) throw BudgetError(*options.budget, least_budgets(graph, options, result.least));
  return std::move(*result.plan);
}

PlanResult try_plan(const Graph& graph, const PlanOptions& options, double faster_than) {
  planning::Planner planner(graph, options);
  if (planner.keep_all_ms() >= faster_than) return {};
  return planning::plan_in_tiers(planner, faster_than);
}

Bytes least_budget(const Graph& graph, const PlanOptions& options) {
  const PlanOptions bounded = as_if_bounded(options);
  planning::Planner planner(graph, bounded);
  if (planning::uses_tiers(planner)) return planning::least_in_tiers(planner).bytes;
  return planner.least().peak;
}

LeastBudgets least_budgets(const Graph& graph, const PlanOptions& options,
                           std::optional<KeptBudget> known_least) {
  const PlanOptions bounded = as_if_bounded(options);
  planning::Planner planner(graph, bounded);
  if (planning::uses_tiers(planner)) {
    const KeptBudget least = known_least ? *known_least : planning::least_in_tiers(planner);
    return {least, least};
  }
  const KeptBudget least = known_least ? *known_least : planning::Planner::kept(planner.least());
  return {least, planner.fast(least)};
}

std::ostream& operator<<(std::ostream& out, const Plan& plan) { return out << to_string(plan); }

std::string to_string(const Plan& plan) {
  std::string text =
      fmt::format("peak {} in {} instructions\n", to_string(plan.peak), plan.instructions.size());
  for (int c = 0; c < category_count; ++c)
    text += fmt::format("  {:<12} {:>12}\n", name(static_cast<Category>(c)),
                        to_string(plan.at_peak[static_cast<Category>(c)]));
  text += fmt::format("  arena {} for {} of live buffers: {:.4f} of the least\n",
                      to_string(plan.arena()), to_string(plan.live_peak), plan.fragmentation());
  if (const int again = plan.recomputed_nodes())
    text += fmt::format("  {} instructions run again: {:.3f} of the time without\n", again,
                        plan.overhead());
  return text;
}

}  // namespace ebb
