#include "mlo/level.h"

#include <fmt/core.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "ebb/error.h"
#include "ebb/mlo/budget_error.h"
#include "ebb/storage.h"
#include "mlo/step_trace.h"

namespace ebb::mlo {
namespace {

// Converts an error about the budget of a level's program into one about the user's budget, which
// covers all memory.
template <class Make>
decltype(auto) within_budget(const Problem& problem, const Make& make) {
  try {
    return make();
  } catch (const BudgetError& error) {
    const Bytes beside = *problem.config().budget - error.budget;
    LeastBudgets kept = error.kept;
    kept.least.bytes += beside, kept.fast.bytes += beside;
    throw LevelBudgetError(problem.name(), *problem.config().budget, kept);
  }
}

// A level does not decide by itself what is outside the device.
CompileOptions without_tiers(CompileOptions options) {
  options.plan.offload = {};
  return options;
}

}  // namespace

LevelBudgetError::LevelBudgetError(std::string name, Bytes asked, const LeastBudgets& smallest)
    : MemoryError(fmt::format("problem \"{}\": a budget of {} cannot be kept: {}", name,
                              to_string(asked), to_string(smallest))),
      problem(std::move(name)),
      budget(asked),
      kept(smallest) {}

Level::Level(Problem& problem, const CompileOptions& compile, const RankOptions& ranks)
    : problem_(problem),
      compile_(without_tiers(compile)),
      ranks_(ranks),
      snapshot_(without_tiers(compile)) {
  if (problem_.level_)
    throw ValueError(fmt::format("problem \"{}\" is part of another engine", problem_.name()));
  compile_.plan.recompute = config().recompute;
  problem_.level_ = this;
}

Level::~Level() {
  problem_.level_ = nullptr;
  problem_.all_.clear();
}

bool Level::keeps_snapshot() const {
  return rolls_back || (!uppers.empty() && config().type == Method::unrolled);
}

std::vector<Variable> Level::stepped_variables() const {
  std::vector<Variable> all;
  for (const nn::NamedVariable& p : problem_.module().parameters()) all.push_back(p.variable);
  for (const nn::NamedVariable& b : problem_.module().buffers()) all.push_back(b.variable);
  for (const auto& [path, variable] : optimizer_state_.all()) all.push_back(variable);
  return all;
}

std::vector<Variable> Level::variables() const {
  std::vector<Variable> all = stepped_variables();
  for (const auto& [path, variable] : kept_.all()) all.push_back(variable);
  for (const auto& [live, copy] : snapshot_.copies()) all.push_back(copy);
  return all;
}

const Taken& Level::taken(std::int64_t ago) const {
  if (ago >= static_cast<std::int64_t>(history_.size()))
    throw ValueError(fmt::format(
        "problem \"{}\" has taken {} updates, but a level above needs the one {} before the last",
        name(), history_.size(), ago));
  return history_[history_.size() - 1 - static_cast<std::size_t>(ago)];
}

double Level::next_rate() const {
  return problem_.optimizer().rate() * problem_.options().schedule->factor(schedule_steps_);
}

std::int64_t Level::loop_length() const {
  return config().unroll_steps * config().gradient_accumulation;
}

void Level::lower_is_ready(const Level& lower) {
  ready_.resize(lowers.size());
  const auto at = std::find(lowers.begin(), lowers.end(), &lower);
  ready_[static_cast<std::size_t>(at - lowers.begin())] = true;
}

bool Level::steps_next() const {
  const auto is_ready = [&](std::size_t i) {
    const Level& lower = *lowers[i];
    const std::int64_t next = lower.count_ + 1;
    return (i < ready_.size() && ready_[i]) ||
           (lower.steps_next() && next % lower.loop_length() == 0 &&
            next > lower.config().warmup_steps);
  };
  for (std::size_t i = 0; i < lowers.size(); ++i)
    if (!is_ready(i)) return false;
  return true;
}

void Level::step(std::int64_t global_step) {
  ready_.resize(lowers.size());
  if (std::find(ready_.begin(), ready_.end(), false) != ready_.end()) return;
  ready_.assign(lowers.size(), false);
  for (Level* lower : lowers) lower->loop_over_ = true;

  if (std::exchange(loop_starts_, false)) problem_.on_inner_loop_start();
  if (keeps_snapshot() && count_ % loop_length() == 0) {
    trace_once();
    snapshot_.take(stepped_variables());
    snapshot_updates_ = updates_;
  }
  ++count_;
  pending_.push_back(problem_.get_batch());
  descend();
  if (!rolls_back) ++schedule_steps_;
  if (config().log_step > 0 && count_ % config().log_step == 0) write_log(global_step);

  if (count_ % loop_length() != 0 || count_ <= config().warmup_steps) return;
  for (Level* upper : uppers) {
    upper->lower_is_ready(*this);
    upper->step(global_step);
  }
  loop_starts_ = true;
}

void Level::descend() {
  const bool whole = static_cast<std::int64_t>(pending_.size()) == config().gradient_accumulation;
  if (!whole) {
    if (accumulates()) run(StepKind::accumulate, {pending_.back()}, 0.0, 0.0);
    return;
  }
  history_.push_back({std::exchange(pending_, {}), 0.0, 0.0});
  while (static_cast<std::int64_t>(history_.size()) > config().unroll_steps) history_.pop_front();
  const std::vector<Batch>& batches = history_.back().batches;
  update_with(gathers() ? batches : std::vector{batches.back()});
}

void Level::update_with(const std::vector<Batch>& batches) {
  Taken& now = history_.back();
  now.rate = next_rate();
  now.step = static_cast<double>(updates_ + 1);
  run(StepKind::update, batches, now.rate, now.step);
  ++updates_;
}

void Level::roll_back() {
  if (!std::exchange(loop_over_, false) || !rolls_back) return;
  wrote = true;
  snapshot_.restore(stepped_variables());
  updates_ = snapshot_updates_;
  const std::vector<Batch>& batches = history_.back().batches;
  if (gathers()) {
    update_with(batches);
  } else {
    for (std::size_t i = 0; i + 1 < batches.size(); ++i)
      run(StepKind::accumulate, {batches[i]}, 0.0, 0.0);
    update_with({batches.back()});
  }
  ++schedule_steps_;
}

void Level::write_log(std::int64_t global_step) {
  const std::int64_t step = config().log_local_step ? count_ : global_step;
  for (const auto& [key, value] : last_) log->scalar(name() + "/" + key, step, value);
}

// --- Programs

ProgramsByShape& Level::programs(StepKind kind, const Feeding& feeding, const Types& types) {
  std::unique_ptr<ProgramsByShape>& programs = kind == StepKind::update ? update_ : accumulate_;
  if (programs) return *programs;
  CompileOptions options = compile_;
  // The budget is below 0 if the memory kept beside the step exceeds it; planning then reports
  // which budget could be kept.
  if (config().budget)
    options.plan.budget =
        *config().budget - bytes_beside(step_graph(*this, kind, feeding, types).graph);
  programs = std::make_unique<ProgramsByShape>(problem_.device(), options);
  return *programs;
}

Bytes Level::bytes_beside(const Graph& graph) const {
  std::unordered_set<const Node*> inside;
  for (const auto& node : topological_order(graph)) inside.insert(node.get());
  Bytes total;
  for (const Problem* problem : problem_.all_) {
    Level& level = problem->level();
    level.trace_once();  // afterwards its state is known
    total += level.output_bytes();
    for (const Variable& v : level.variables())
      if (!inside.contains(v.node().get()) && !compile_.plan.offload.homes.contains(v.node()->id()))
        total += Storage::reservation(v.device(), v.type().bytes());
  }
  return total - numbers(graph.outputs.size());
}

// Bytes of this many outputs: each has pages of its own.
Bytes Level::numbers(std::size_t count) const {
  return static_cast<std::int64_t>(count) * Storage::reservation(problem_.device(), size_of(f64));
}

Bytes Level::output_bytes() const { return numbers(names_[0].size() + names_[1].size()); }

Graph Level::trace(StepKind kind, const Feeding& feeding, const Types& types) {
  StepGraph step = step_graph(*this, kind, feeding, types);
  names_[static_cast<std::size_t>(kind)] = std::move(step.names);
  return std::move(step.graph);
}

void Level::run(StepKind kind, const std::vector<Batch>& own, double rate, double step) {
  const Feeding feeding = feeding_of(*this, own.size());
  Batch fed;
  Types types;
  for (const Feeding::Part& part : feeding.batches) {
    const Batch& batch = part.when.ago == When::to_come
                             ? own[part.part]
                             : part.when.level->taken(part.when.ago).batches[part.part];
    types.push_back(batch.types());
    fed.tensors.insert(fed.tensors.end(), batch.tensors.begin(), batch.tensors.end());
  }
  Program& program = within_budget(problem_, [&]() -> Program& {
    return programs(kind, feeding, types).program(fed, [&](const std::vector<TensorType>&) {
      return trace(kind, feeding, types);
    });
  });
  int next = 0;
  for (const Tensor& tensor : fed.tensors) program.feed(next++, tensor);
  for (const When& when : feeding.updates) {
    const Level& level = *when.level;
    if (when.level == this) {
      program.feed(next++, rate), program.feed(next++, step);
    } else if (when.ago == When::to_come) {
      program.feed(next++, level.next_rate());
      program.feed(next++, static_cast<double>(level.updates_ + 1));
    } else {
      program.feed(next++, level.taken(when.ago).rate);
      program.feed(next++, level.taken(when.ago).step);
    }
  }
  program.set_step(static_cast<std::uint64_t>(count_));
  try {
    program.run();
  } catch (...) {
    wrote |= !program.intact();
    throw;
  }
  wrote = true;

  int output = 0;
  for (const std::string& number : names_[static_cast<std::size_t>(kind)])
    last_[number] = program.scalar(output++);
}

// --- Planning

Feeding Level::planned_feeding() {
  return feeding_of(*this,
                    gathers() ? static_cast<std::size_t>(config().gradient_accumulation) : 1u);
}

Level::Types Level::planned_types(const Feeding& feeding) {
  Types types;
  for (const Feeding::Part& part : feeding.batches) {
    const Problem& problem = part.when.level->problem();
    types.push_back(problem.batch_types());
    if (types.back().empty())
      throw ValueError(
          fmt::format("problem \"{}\" must tell the types of its batches before it has any: give "
                      "it loaders, or override batch_types",
                      problem.name()));
  }
  return types;
}

const Plan& Level::plan(StepKind kind) {
  const Feeding feeding = planned_feeding();
  const Types types = planned_types(feeding);
  std::vector<TensorType> key;
  for (const auto& part : types) key.insert(key.end(), part.begin(), part.end());
  return within_budget(problem_, [&]() -> const Plan& {
    return programs(kind, feeding, types).plan(key, [&](const auto&) {
      return trace(kind, feeding, types);
    });
  });
}

void Level::set_homes(const std::unordered_map<std::uint64_t, Tier>& homes) {
  compile_.plan.offload.homes = homes;
}

std::vector<Graph> Level::graphs() {
  const Feeding feeding = planned_feeding();
  const Types types = planned_types(feeding);
  std::vector<Graph> all{step_graph(*this, StepKind::update, feeding, types).graph};
  if (accumulates()) all.push_back(step_graph(*this, StepKind::accumulate, feeding, types).graph);
  return all;
}

bool Level::keeps_budget() {
  if (!config().budget) return true;
  CompileOptions quick = compile_;
  quick.plan.effort = Effort::quick;
  for (const Graph& graph : graphs()) {
    quick.plan.budget = *config().budget - bytes_beside(graph);
    if (*quick.plan.budget <= Bytes{} || !try_plan_program(graph, quick).plan) return false;
  }
  return true;
}

Bytes Level::least_budget() {
  Bytes least;
  for (const Graph& graph : graphs())
    least = std::max(least, ebb::least_budget(graph, compile_) + bytes_beside(graph));
  return least;
}

void Level::each_program(const std::function<void(const Program&)>& visit) const {
  for (const auto* programs : {accumulate_.get(), update_.get()})
    if (programs) programs->each_compiled(visit);
}

double Level::steps_for_each() const {
  double steps = 1.0;
  for (const Level* lower : lowers)
    steps = std::min(steps, lower->steps_for_each() / static_cast<double>(lower->loop_length()));
  return steps;
}

double Level::runs_for_each() const {
  return gathers() ? steps_for_each() / static_cast<double>(config().gradient_accumulation)
                   : steps_for_each();
}

void Level::trace_once() {
  if (std::exchange(traced_, true)) return;
  const Feeding feeding = planned_feeding();
  const Types types = planned_types(feeding);
  trace(StepKind::update, feeding, types);
  if (accumulates()) trace(StepKind::accumulate, feeding, types);
  if (keeps_snapshot())
    for (const Variable& variable : stepped_variables()) snapshot_.copy_of(variable);
}

// --- State

Level::Counters Level::counters() const {
  return {count_, updates_, schedule_steps_, snapshot_updates_, loop_starts_, loop_over_, ready_};
}

void Level::restore(const Counters& c) {
  count_ = c.count, updates_ = c.updates, schedule_steps_ = c.schedule_steps;
  snapshot_updates_ = c.snapshot_updates;
  loop_starts_ = c.loop_starts, loop_over_ = c.loop_over;
  ready_ = c.ready;
}

Level::HostState Level::host_state() const {
  HostState state{counters(), pending_, history_, {}, problem_.save_state()};
  for (const LoaderPtr& loader : problem_.options().loaders)
    state.loaders.push_back(loader->save());
  return state;
}

void Level::restore(HostState state) {
  restore(state.counters);
  pending_ = std::move(state.pending), history_ = std::move(state.history);
  const std::vector<LoaderPtr>& loaders = problem_.options().loaders;
  for (std::size_t i = 0; i < loaders.size(); ++i)
    if (loaders[i]->save() != state.loaders[i]) loaders[i]->restore(state.loaders[i]);
  if (problem_.save_state() != state.problem) problem_.restore_state(state.problem);
}

}  // namespace ebb::mlo
