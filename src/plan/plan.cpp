#include "ebb/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <unordered_map>
#include <utility>

#include "core/backend.h"
#include "ops/leaf/leaf.h"
#include "plan/arena_layout.h"
#include "plan/lanes.h"
#include "plan/lower.h"
#include "plan/recompute/rebuild.h"
#include "plan/recompute/search.h"
#include "plan/recompute/strategy.h"
#include "plan/totals.h"

namespace ebb {
namespace {

// Lays out buffers for two lanes, in no more bytes than one lane takes.
Bytes lay_out_lanes(Plan& plan, Bytes live, Bytes in_one_lane) {
  mark_beside(plan);
  Table<Buffer> placed = plan.buffers;
  stretch_lives(plan, live);
  Bytes size = lay_out(plan.buffers.rows());
  if (size > in_one_lane) plan.buffers = std::move(placed), size = in_one_lane;
  order_lanes(plan);
  return size;
}

// Sets offsets of buffers, lanes and totals.
void finish(Plan& plan, const PlanOptions& options) {
  Bytes size = lay_out(plan.buffers.rows());
  const int count = static_cast<int>(plan.instructions.size());
  if (std::min(options.lanes, backend_of(plan.device).lanes()) > 1)
    size = lay_out_lanes(plan, live_peak(plan.buffers.rows(), count).bytes, size);
  Space& space = plan.spaces[SpaceId(0)];
  space.size = Storage::reservation(plan.device, size, space.pages);
  add_up(plan);
}

// Returns the graph. Throws if its tensors together exceed 2^56 bytes: below that, the planner's
// sums over tensors and their workspaces do not overflow.
const Graph& countable(const Graph& graph) {
  constexpr Bytes most{std::int64_t{1} << 56};
  Bytes total;
  for (const auto& node : topological_order(graph))
    for (const TensorType& type : node->outputs()) {
      if (type.bytes() > most - total)
        throw MemoryError(fmt::format(
            "the tensors of this graph take more than {} together: too many to be planned",
            to_string(most)));
      total += type.bytes();
    }
  return graph;
}

// Makes plans of one graph that differ in their recomputation.
class Planner {
 public:
  Planner(const Graph& graph, const PlanOptions& options)
      : graph_(countable(graph)),
        options_(options),
        base_(lower(graph, schedule(graph, options.updates), options)),
        model_(base_.plan, base_.graph_instructions),
        recompute_(chosen(options)),
        strategy_(make_strategy(recompute_)) {}

  double keep_all_ms() const { return model_.keep_all_ms(); }

  PlanResult run() {
    if (options_.budget) return within(*options_.budget);
    return {realise(strategy_->decide(question(unlimited))), {}};
  }

  Plan least() {
    return recompute_.mode == Recompute::Mode::automatic ? least_found()
                                                         : realise(strategy_->decide(question(0)));
  }

  // The smallest budget found, at or above the least one, whose plan has at most `fast_overhead`.
  // The distance to the least budget is doubled until a quick search finds a fast plan, then
  // bisected. Only the automatic strategy is searched; for all others the least budget is returned.
  KeptBudget fast(const KeptBudget& least) {
    if (least.overhead <= fast_overhead || recompute_.mode != Recompute::Mode::automatic)
      return least;
    Search search(model_, Effort::quick);
    const std::vector<Runs> starts = hand_made(question(0));
    const std::int64_t low = (least.bytes - persistent()).count,
                       range = search.peak_of(keep_all(model_)) - low;
    const auto runs_at = [&](std::int64_t more) -> std::optional<Runs> {
      const auto runs = search.solve(low + more, starts);
      const double most = fast_overhead * model_.keep_all_ms();
      return runs && search.ms_of(*runs) <= most ? runs : std::nullopt;
    };
    const std::int64_t finest = std::max<std::int64_t>(1, range / 64);  // where bisection ends
    std::int64_t bad = 0, good = finest;
    std::optional<Runs> best;
    while (!(best = runs_at(good)) && good < range) bad = good, good = std::min(2 * good, range);
    while (best && good - bad > finest) {
      const std::int64_t middle = (good + bad) / 2;
      if (auto runs = runs_at(middle))
        best = std::move(runs), good = middle;
      else
        bad = middle;
    }
    // Confirm by planning for that budget: its plan may have another layout, with more
    // fragmentation.
    Bytes budget = realise(best.value_or(keep_all(model_))).peak;
    for (int attempt = 0; attempt < 4; ++attempt, budget += Bytes{finest}) {
      const PlanResult result = within(budget);
      if (result.plan && result.plan->overhead() <= fast_overhead)
        return {budget, result.plan->overhead()};
    }
    return kept(realise(keep_all(model_)));
  }

  static KeptBudget kept(const Plan& plan) { return {plan.peak, plan.overhead()}; }

 private:
  static constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();

  static Recompute chosen(const PlanOptions& options) {
    if (options.release == Release::at_end) return {Recompute::Mode::none};
    if (options.budget && options.recompute.mode == Recompute::Mode::marked)
      return {Recompute::Mode::automatic};
    return options.recompute;
  }

  // Fragmentation is known only after the layout. When a plan exceeds the budget because of it, the
  // limit of live bytes is lowered by the excess and planning repeated; later attempts subtract a
  // multiple of the excess, since another plan may fragment more.
  PlanResult within(Bytes budget) {
    const std::int64_t limit = budget.count - persistent().count;
    std::int64_t live_limit = limit;
    for (int attempt = 1; attempt <= 6 && live_limit > 0; ++attempt) {
      Plan plan = realise(strategy_->decide(question(live_limit)));
      if (plan.peak <= budget) return {std::move(plan), {}};
      if (plan.live_peak.count > live_limit) break;  // the strategy cannot go lower
      live_limit = plan.live_peak.count - attempt * (plan.arena().count - limit);
    }
    Plan plan = least();
    if (plan.peak <= budget) return {std::move(plan), {}};
    return {{}, kept(plan)};
  }

  // The last bytes saved cost the most time, and steps whose memory is full throughout are hard to
  // lay out. So a faster plan may exceed the lowest plan's arena by up to 2 % of it, but by no more
  // than 10 % of what the lowest plan saves compared with keeping all.
  Plan least_found() {
    constexpr std::int64_t of_taken = 50, of_saved = 10;
    Search search(model_, options_.effort);
    std::vector<Runs> starts = hand_made(question(0));
    starts.push_back(search.least(starts));
    Plan lowest = realise(starts.back());
    if (options_.effort == Effort::quick) return lowest;
    const std::int64_t taken = lowest.arena().count;
    const std::int64_t saved = search.peak_of(keep_all(model_)) - lowest.live_peak.count;
    const std::int64_t most = taken + std::min(taken / of_taken, saved / of_saved);
    const auto runs = search.solve(most, starts);
    if (!runs) return lowest;
    Plan faster = realise(*runs);
    return faster.arena().count <= most ? faster : lowest;
  }

  Question question(std::int64_t limit) const {
    return {base_.plan, model_, limit, options_.effort};
  }

  Bytes persistent() const {
    Bytes total;
    for (const Buffer& buffer : base_.plan.buffers)
      if (!buffer.in_arena()) total += Storage::reservation(base_.plan.device, buffer.size);
    return total;
  }

  Plan realise(Runs runs) const {
    Simulation simulation(model_);
    simulation.run(runs);
    const auto in_order = std::adjacent_find(runs.begin(), runs.end(), std::greater_equal<>());
    if (in_order == runs.end()) {
      Plan plan = base_.plan;
      finish(plan, options_);
      return plan;
    }
    const Graph again = rebuild(graph_, base_.nodes, model_, runs);
    Plan plan = lower(again, topological_order(again), options_).plan;
    std::vector<int> last_run(model_.steps.size(), -1);
    for (int r = 0; r < static_cast<int>(runs.size()); ++r) {
      const std::size_t step = static_cast<std::size_t>(runs[static_cast<std::size_t>(r)]);
      const int before = std::exchange(last_run[step], r);
      if (before >= 0) note(plan, simulation, before, r);
    }
    std::stable_sort(plan.decisions.begin(), plan.decisions.end(),
                     [](const Decision& a, const Decision& b) { return a.bytes > b.bytes; });
    finish(plan, options_);
    return plan;
  }

  void note(Plan& plan, const Simulation& simulation, int before, int now) const {
    Instruction& instruction = plan.instructions[InstructionId(now)];
    instruction.recomputed = true;
    Bytes bytes;  // of the outputs that are read later
    for (int c = simulation.first_made(now); c < simulation.first_made(now + 1); ++c) {
      const Copy& copy = simulation.copies()[static_cast<std::size_t>(c)];
      if (copy.last > now)
        bytes += Bytes{model_.values[static_cast<std::size_t>(copy.value)].bytes};
    }
    plan.decisions.push_back({instruction.path, std::string(instruction.op->name()), bytes,
                              InstructionId(before), InstructionId(now), instruction.predicted_ms});
  }

  const Graph& graph_;
  const PlanOptions& options_;
  Lowered base_;
  StepModel model_;
  Recompute recompute_;
  std::unique_ptr<const Strategy> strategy_;
};

// Options for finding a budget: with any budget set, the default strategy becomes automatic.
PlanOptions as_if_bounded(PlanOptions options) {
  if (!options.budget) options.budget = Bytes{};
  return options;
}

}  // namespace

void add_up(Plan& plan) {
  plan.persistent = {}, plan.at_peak = {};
  plan.predicted_ms = plan.predicted_keep_all_ms = 0.0;
  const LivePeak live = live_peak(plan.buffers.rows(), static_cast<int>(plan.instructions.size()));
  plan.live_peak = live.bytes;
  plan.peak_instruction = live.instruction;
  for (const Buffer& buffer : plan.buffers) {
    const bool live_at_peak = buffer.first <= live.instruction && buffer.last >= live.instruction;
    if (!buffer.in_arena()) plan.persistent += Storage::reservation(plan.device, buffer.size);
    if (!buffer.in_arena())
      plan.at_peak[buffer.category] += Storage::reservation(plan.device, buffer.size);
    else if (live_at_peak)
      plan.at_peak[buffer.category] += buffer.size;
  }
  plan.peak = plan.arena() + plan.persistent;
  for (const Instruction& instruction : plan.instructions) {
    plan.predicted_ms += instruction.predicted_ms;
    if (!instruction.recomputed) plan.predicted_keep_all_ms += instruction.predicted_ms;
  }
}

Bytes CategoryBytes::total() const {
  Bytes sum;
  for (Bytes value : values) sum += value;
  return sum;
}

bool share_bytes(const Buffer& a, const Buffer& b) {
  return a.in_arena() && a.place.space == b.place.space &&
         a.place.offset < b.place.offset + b.size && b.place.offset < a.place.offset + a.size;
}

Bytes Plan::arena() const {
  Bytes sum;
  for (const Space& space : spaces) sum += space.size;
  return sum;
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
  Planner planner(graph, options);
  if (planner.keep_all_ms() >= faster_than) return {};
  return planner.run();
}

Bytes least_budget(const Graph& graph, const PlanOptions& options) {
  return Planner(graph, as_if_bounded(options)).least().peak;
}

LeastBudgets least_budgets(const Graph& graph, const PlanOptions& options,
                           std::optional<KeptBudget> known_least) {
  const PlanOptions bounded = as_if_bounded(options);
  Planner planner(graph, bounded);
  const KeptBudget least = known_least ? *known_least : Planner::kept(planner.least());
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
