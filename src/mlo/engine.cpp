#include "ebb/mlo/engine.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "ebb/activation_bits.h"
#include "ebb/arena.h"
#include "ebb/error.h"
#include "ebb/report/progress.h"
#include "mlo/engine_state.h"
#include "runtime/place_variables.h"

namespace ebb::mlo {
namespace {

std::unique_ptr<report::RunLog> make_log(const EngineConfig& config) {
  switch (config.logger) {
    case Logger::json_lines:
      return report::json_lines(config.log_folder / "log.jsonl");
    case Logger::tensorboard:
      return report::tensorboard(config.log_folder);
    case Logger::none:
      break;
  }
  return report::none();
}

std::vector<std::string> names_of(const std::vector<Problem*>& problems) {
  std::vector<std::string> names;
  for (const Problem* problem : problems) names.push_back(problem->name());
  return names;
}

void check_ranks(const EngineConfig& config) {
  const RankOptions& ranks = config.ranks;
  if (ranks.shard != Shard::nothing)
    throw ValueError(
        "the levels of an engine cannot be sharded: hypergradients read the whole weights and "
        "optimizer state of the levels below");
  if (!ranks.any()) {
    if (ranks.count != 1)
      throw ValueError("EngineConfig: ranks share the leaves of batches, but `leaves` is 0");
    return;
  }
  LeafBlocks::of(ranks);
}

// Lower levels before the levels above them.
void order_upwards(Level* level, std::vector<Level*>& order) {
  if (std::find(order.begin(), order.end(), level) != order.end()) return;
  for (Level* lower : level->lowers) order_upwards(lower, order);
  order.push_back(level);
}

}  // namespace

Engine::Engine(std::vector<Problem*> problems, const Dependencies& dependencies,
               const EngineConfig& config)
    : config_(config), state_(std::make_unique<State>()) {
  State& s = *state_;
  if (config_.strategy != "default")
    throw ValueError(
        fmt::format("there is no strategy \"{}\"; there is: default, all levels on one device",
                    config_.strategy));
  check_ranks(config_);
  if (const auto& passes = config_.compile.passes;
      passes && std::ranges::find(*passes, activation_codes_pass) != passes->end())
    throw ValueError(fmt::format(
        "the pass \"{}\" is for training on one level: levels above differentiate through the "
        "gradients that it rounds",
        activation_codes_pass));
  const LevelGraph graph(names_of(problems), dependencies);
  const Device device = problems.front()->device();
  for (const Problem* problem : problems)
    if (problem->device() != device)
      throw DeviceError(
          fmt::format("all problems must be on one device, but \"{}\" is on {} and "
                      "\"{}\" on {}",
                      problems.front()->name(), to_string(device), problem->name(),
                      to_string(problem->device())));
  s.arena = config_.compile.arena ? config_.compile.arena
                                  : std::make_shared<Arena>(device, config_.compile.machine);
  s.log = config_.ranks.rank == 0 ? make_log(config_) : report::none();
  for (std::size_t i = 0; i < problems.size(); ++i) {
    CompileOptions compile = config_.compile;
    compile.arena = s.arena;
    compile.seed = config_.seed + i;
    s.levels.push_back(std::make_unique<Level>(*problems[i], compile, config_.ranks));
    // Otherwise two problems with the same kind of module would start with the same weights.
    s.seeds.push_back(compile.seed);
  }
  for (std::size_t i = 0; i < problems.size(); ++i) {
    Level& level = *s.levels[i];
    const auto at = [&](int number) { return s.levels[static_cast<std::size_t>(number)].get(); };
    for (int upper : graph.uppers[i]) level.uppers.push_back(at(upper));
    for (int lower : graph.lowers[i]) level.lowers.push_back(at(lower));
    for (const LevelPath& path : graph.paths[i]) {
      level.paths.emplace_back();
      for (int number : path) level.paths.back().push_back(at(number));
    }
    if (!level.uppers.empty()) check_below_others(level.config(), level.name());
    level.rolls_back = config_.roll_back && !level.uppers.empty();
    level.log = s.log.get();
    problems[i]->all_ = problems;
  }
  for (int leaf : graph.leaves) s.leaves.push_back(s.levels[static_cast<std::size_t>(leaf)].get());
  for (const auto& level : s.levels) order_upwards(level.get(), s.upwards);
}

Engine::~Engine() = default;

void Engine::State::settle_homes(const CompileOptions& compile) {
  if (std::exchange(homes_settled, true) || !compile.plan.offload.any()) return;
  homes = settled_homes(levels, compile.plan.offload);
}

void Engine::State::materialise(const CompileOptions& compile) {
  if (std::exchange(materialised, true)) return;
  settle_homes(compile);
  // Variables for other tiers are placed there before they have values, so that they never fill the
  // device's memory.
  for (std::size_t i = 0; i < levels.size(); ++i)
    for (const Tier tier : {Tier::host, Tier::disk}) {
      Leaves there;
      for (const Variable& variable : levels[i]->variables())
        if (const auto home = homes.find(variable.node()->id());
            home != homes.end() && home->second == tier)
          there.push_back(variable.node());
      place_in(tier, arena->device(), there, seeds[i], compile.offload_folder);
    }
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const nn::ModuleBase& module = levels[i]->problem().module();
    for (const nn::NamedVariable& p : module.parameters()) p.variable.materialise(seeds[i]);
    for (const nn::NamedVariable& b : module.buffers()) b.variable.materialise(seeds[i]);
  }
}

void Engine::train_step() {
  State& s = *state_;
  s.materialise(config_.compile);
  s.intact = true;
  // Reads data first: data that cannot be read is an error before anything changes.
  for (Level* level : s.upwards)
    if (level->steps_next())
      for (const LoaderPtr& loader : level->problem().options().loaders) loader->prepare();
  std::vector<Level::HostState> before;
  for (const auto& level : s.levels) before.push_back(level->host_state()), level->wrote = false;
  ++s.global_step;
  try {
    for (Level* leaf : s.leaves) {
      leaf->step(s.global_step);
      if (config_.roll_back)
        for (Level* level : s.upwards) level->roll_back();
    }
  } catch (...) {
    s.intact = std::none_of(s.levels.begin(), s.levels.end(),
                            [](const auto& level) { return level->wrote; });
    if (s.intact) {
      --s.global_step;
      for (std::size_t i = 0; i < s.levels.size(); ++i) s.levels[i]->restore(std::move(before[i]));
    }
    throw;
  }
}

void Engine::run() {
  State& s = *state_;
  std::optional<report::Progress> progress;
  if (config_.progress && config_.ranks.rank == 0) progress.emplace(config_.train_iters);
  while (s.global_step < config_.train_iters && !s.stopped) {
    train_step();
    if (progress) {
      const Stats& last = s.leaves.front()->problem().last();
      const auto loss = last.find("loss");
      if (loss != last.end()) progress->update(s.global_step, loss->second, resident());
    }
    if (config_.valid_step < 1 || s.global_step % config_.valid_step != 0) continue;
    const Stats stats = validation();
    for (const auto& [key, value] : stats) s.log->scalar("validation/" + key, s.global_step, value);
    if (config_.early_stopping) s.judge(stats, *config_.early_stopping);
  }
}

void Engine::State::judge(const Stats& stats, const EarlyStopping& rule) {
  const auto found = stats.find(rule.metric);
  if (found == stats.end())
    throw ValueError(
        fmt::format("early stopping needs the metric \"{}\", but validation gives {} others",
                    rule.metric, stats.size()));
  const double badness = rule.mode == EarlyStopping::Mode::min ? found->second : -found->second;
  waited = badness <= best ? 0 : waited + 1;
  best = std::min(best, badness);
  stopped = waited >= rule.tolerance;
}

std::int64_t Engine::global_step() const { return state_->global_step; }
bool Engine::intact() const { return state_->intact; }
bool Engine::stopped_early() const { return state_->stopped; }
const std::shared_ptr<Arena>& Engine::arena() const { return state_->arena; }

Problem& Engine::problem(std::string_view name) const {
  return state_->levels.front()->problem().other(name);
}

}  // namespace ebb::mlo
