#include "plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "ops/transfer/transfer.h"
#include "plan/finish.h"
#include "plan/offload/pooled_time.h"
#include "plan/offload/start_early.h"
#include "plan/recompute/rebuild.h"
#include "plan/recompute/search.h"

namespace ebb::planning {
namespace {

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

constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();

Recompute chosen(const PlanOptions& options) {
  if (options.release == Release::at_end) return {Recompute::Mode::none};
  if (options.budget && options.recompute.mode == Recompute::Mode::marked)
    return {Recompute::Mode::automatic};
  return options.recompute;
}

}  // namespace

Planner::Planner(const Graph& graph, const PlanOptions& options)
    : Planner(graph, schedule(countable(graph), options.updates), options) {}

Planner::Planner(const Graph& graph, const Order& order, const PlanOptions& options)
    : graph_(graph),
      options_(options),
      order_(order),
      base_(lower(graph, order, options)),
      model_(base_.plan, base_.graph_instructions),
      recompute_(chosen(options)),
      strategy_(make_strategy(recompute_)),
      transfers_(std::any_of(order.begin(), order.end(),
                             [](const auto& node) { return is_transfer(node->op()); })) {}

PlanResult Planner::run() {
  if (options_.budget) return within(*options_.budget);
  return {realise(strategy_->decide(question(unlimited))), {}};
}

Plan Planner::least() {
  return recompute_.mode == Recompute::Mode::automatic ? least_found()
                                                       : realise(strategy_->decide(question(0)));
}

// The distance to the least budget is doubled until a quick search finds a fast plan, then
// bisected.
KeptBudget Planner::fast(const KeptBudget& least) {
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

// Fragmentation is known only after the layout. When a plan exceeds the budget because of it, the
// limit of live bytes is lowered by the excess and planning repeated; later attempts subtract a
// multiple of the excess, since another plan may fragment more.
std::optional<Plan> Planner::keep(Bytes budget, std::optional<Runs> first) const {
  const std::int64_t limit = budget.count - persistent().count;
  std::int64_t live_limit = limit;
  for (int attempt = 1; attempt <= 6 && live_limit > 0; ++attempt) {
    Plan plan =
        realise(attempt == 1 && first ? std::move(*first) : strategy_->decide(question(live_limit)),
                Aim::budget);
    if (plan.peak <= budget) return plan;
    if (plan.live_peak.count > live_limit) break;  // the strategy cannot go lower
    live_limit = plan.live_peak.count - attempt * (plan.arena().count - limit);
  }
  return {};
}

PlanResult Planner::within(Bytes budget) {
  if (auto plan = keep(budget)) return {std::move(plan), {}};
  Plan plan = least();
  if (plan.peak <= budget) return {std::move(plan), {}};
  return {{}, kept(plan)};
}

// The last bytes saved cost the most time, and steps whose memory is full throughout are hard to
// lay out. So a faster plan may exceed the lowest plan's arena by up to 2 % of it, but by no more
// than 10 % of what the lowest plan saves compared with keeping all.
Plan Planner::least_found() {
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

Question Planner::question(std::int64_t limit) const {
  return {base_.plan, model_, limit, options_.effort};
}

Bytes Planner::persistent() const {
  Bytes total;
  for (const Buffer& buffer : base_.plan.buffers)
    if (base_.plan.persists(buffer)) total += Storage::reservation(base_.plan.device, buffer.size);
  return total;
}

std::optional<Planner::Sketch> Planner::sketch(Bytes budget) const {
  const Bytes limit = budget - persistent();
  if (limit <= Bytes{}) return {};
  Runs runs = strategy_->decide(question(limit.count));
  Simulation simulation(model_);
  if (!simulation.run(runs) || simulation.peak() > limit.count) return {};
  if (!transfers_) return Sketch{std::move(runs), simulation.ms()};
  const auto time = [&](const Lowered& lowered) {
    return pooled_ms(lowered.plan, early_order(lowered, limit), limit);
  };
  if (runs == keep_all(model_)) return Sketch{std::move(runs), time(base_)};
  const Graph again = rebuild(graph_, base_.nodes, model_, runs);
  const double ms = time(lower(again, topological_order(again), options_));
  return Sketch{std::move(runs), ms};
}

Bytes Planner::keep_all_peak() const {
  Simulation simulation(model_);
  Runs runs = keep_all(model_);
  simulation.run(runs);
  return persistent() + Bytes{simulation.peak()};
}

// Fetches start early only as far as memory allows: up to the budget or, without one, up to the
// peak that the plan has anyway. Because a layout wastes some memory, the limit of live bytes is
// lower.
Plan Planner::realise(Runs runs, Aim aim) const {
  if (!transfers_ || !options_.budget) return realise(std::move(runs), Bytes{});
  const Bytes room = *options_.budget - persistent();
  for (const double share : {0.98, 0.93, 0.85, 0.0}) {
    const Bytes limit{static_cast<std::int64_t>(share * static_cast<double>(room.count))};
    Plan plan = realise(runs, limit, room);
    if (plan.peak <= *options_.budget) return plan;
    if (plan.live_peak <= limit) continue;
    // The runs alone exceed the limit: a smaller one gives the same instructions.
    if (aim == Aim::budget) return plan;
    break;
  }
  return realise(std::move(runs), Bytes{});
}

Planner::Arranged Planner::arrange(const Runs& runs, Bytes limit) const {
  const Graph again = rebuild(graph_, base_.nodes, model_, runs);
  const Order order = topological_order(again);
  Arranged result{lower(again, order, options_), {}};
  if (transfers_) {
    const Order early = start_early(result.lowered, order, limit);
    const std::vector<std::shared_ptr<Node>> before = std::move(result.lowered.nodes);
    result.lowered = lower(again, early, options_);
    result.places = positions_of(before, result.lowered.nodes);
  } else {
    for (std::size_t r = 0; r < runs.size(); ++r) result.places.emplace_back(r);
  }
  return result;
}

// Transfers may overlap with other work while at most `limit` bytes are live, or the peak of the
// runs if that is more. An arena smaller than `enough` brings no advantage.
Plan Planner::realise(Runs runs, Bytes limit, Bytes enough) const {
  Simulation simulation(model_);
  simulation.run(runs);
  const auto in_order = std::adjacent_find(runs.begin(), runs.end(), std::greater_equal<>());
  if (in_order == runs.end() && !transfers_) {
    Plan plan = base_.plan;
    finish(plan, options_, limit, enough);
    return plan;
  }
  auto [lowered, places] = arrange(runs, limit);
  Plan& plan = lowered.plan;
  std::vector<int> last_run(model_.steps.size(), -1);
  for (int r = 0; r < static_cast<int>(runs.size()); ++r) {
    const std::size_t step = static_cast<std::size_t>(runs[static_cast<std::size_t>(r)]);
    const int before = std::exchange(last_run[step], r);
    if (before >= 0) note(plan, simulation, before, r, places);
  }
  std::stable_sort(plan.decisions.begin(), plan.decisions.end(),
                   [](const Decision& a, const Decision& b) { return a.bytes > b.bytes; });
  finish(plan, options_, limit, enough);
  return std::move(plan);
}

void Planner::note(Plan& plan, const Simulation& simulation, int before, int now,
                   std::span<const InstructionId> places) const {
  Instruction& instruction = plan.instructions[places[static_cast<std::size_t>(now)]];
  if (is_transfer(*instruction.op)) return;
  instruction.recomputed = true;
  Bytes bytes;  // of the outputs that are read later
  for (int c = simulation.first_made(now); c < simulation.first_made(now + 1); ++c) {
    const Copy& copy = simulation.copies()[static_cast<std::size_t>(c)];
    if (copy.last > now) bytes += Bytes{model_.values[static_cast<std::size_t>(copy.value)].bytes};
  }
  plan.decisions.push_back({instruction.path, std::string(instruction.op->name()), bytes,
                            places[static_cast<std::size_t>(before)],
                            places[static_cast<std::size_t>(now)], instruction.predicted_ms});
}

}  // namespace ebb::planning
