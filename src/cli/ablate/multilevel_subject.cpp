// Workloads of several levels: a trial is an engine. What a row says holds for every level; the
// batch is that of an update, of whichever level.
#include <fmt/core.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "cli/ablate/subject.h"
#include "ebb/arena.h"
#include "ebb/error.h"
#include "ebb/workloads/settings.h"

namespace ebb::cli {
namespace {

using Clock = std::chrono::steady_clock;
using workloads::LevelOptions;
using workloads::MultilevelOptions;

// The options of every level as a row's setup wants them.
MultilevelOptions arranged(const MultilevelOptions& plain, const Setup& setup, std::int64_t batch) {
  MultilevelOptions options = plain;
  if (batch % setup.accumulate != 0)
    throw ValueError(
        fmt::format("a batch of {} cannot be cut into {} equal parts", batch, setup.accumulate));
  options.common.batch = batch / setup.accumulate;
  options.common.fused_loss = setup.fused_loss;
  const Precision precision = precision_by_name(setup.planning.precision);
  if (!options.common.layout && uses(options, workloads::Setting::layout))
    options.common.layout =
        fastest_layout(options.common.device, precision, setup.compile.plan.tf32);
  const std::vector<std::string> names = workloads::level_names(options.common.name);
  for (const std::string& name : names) {
    LevelOptions& level = options.levels[name];
    level.accumulate = setup.accumulate;
    // Levels above have few parameters, which their small steps need all bits of.
    level.precision = name != names.front() && parameter_dtype(precision) == bf16
                          ? Precision::mixed_bf16
                          : precision;
    level.recompute = setup.compile.plan.recompute;
    level.budget = setup.compile.plan.budget;
  }
  return options;
}

mlo::EngineConfig engine_config(const Setup& setup, std::uint64_t seed) {
  mlo::EngineConfig config;
  config.seed = seed;
  config.compile = setup.compile;
  config.compile.plan.budget.reset();  // each level has its own
  return config;
}

class MultilevelTrial : public Trial {
 public:
  MultilevelTrial(const MultilevelOptions& options, const Setup& setup)
      : parts_(setup.accumulate),
        meter_(options.common.device),
        task_(workloads::make_multilevel(options)),
        engine_(task_->problems(), task_->dependencies(),
                engine_config(setup, options.common.seed)) {}

  const Plan& plan() override {
    if (!plan_) {
      plan_ = engine_.plan().together;
      plan_->predicted_ms *= static_cast<double>(parts_);
      plan_->predicted_keep_all_ms *= static_cast<double>(parts_);
    }
    return *plan_;
  }
  Bytes least_budget() override { return engine_.least_budget(); }
  // An update of the lowest level, and what follows from it above.
  Step step() override {
    const Clock::time_point begin = Clock::now();
    for (std::int64_t i = 0; i < parts_; ++i) engine_.train_step();
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    return {task_->problems().front()->last().at("loss"), ms};
  }
  Measured measured() override { return meter_.read(engine_.leaves(), engine_.resident()); }

 private:
  std::int64_t parts_;
  MemoryMeter meter_;
  std::unique_ptr<workloads::MultilevelWorkload> task_;
  mlo::Engine engine_;
  std::optional<Plan> plan_;
};

class Multilevel : public Subject {
 public:
  explicit Multilevel(const MultilevelOptions& options) : options_(options) {
    const auto task = workloads::make_multilevel(options);
    batch = task->batch_size;
    for (const mlo::Problem* problem : task->problems()) {
      parameters += problem->module().parameter_count();
      sources.add(problem->module());
    }
    const mlo::Problem& lowest = *task->problems().front();
    lowest_ = lowest.name();
    lowest_rate_ = lowest.optimizer().rate();
    const mlo::Method method = lowest.config().type;
    traits = {false, lowest.optimizer().rule().name().starts_with("adam"),
              method == mlo::Method::neumann || method == mlo::Method::cg};
    settings = size_settings(options.common);
    settings["classifier"] = workloads::classifier_of(options);
    if (task->settings.imbalance) settings["imbalance"] = *task->settings.imbalance;
    if (task->settings.meta) settings["meta"] = *task->settings.meta;
    for (const mlo::Problem* problem : task->problems())
      settings["levels"][problem->name()] = level_settings(*problem);
  }

  std::unique_ptr<Trial> start(const Setup& setup) const override {
    MultilevelOptions options = arranged(options_, setup, batch);
    if (const auto& name = setup.planning.optimizer) {
      LevelOptions& lowest = options.levels[lowest_];
      lowest.optimizer = *name;
      // Adam in fewer bits takes Adam's rate; other rules have rates of their own.
      lowest.rate = name->starts_with("adam") ? std::optional(lowest_rate_) : std::nullopt;
    }
    return std::make_unique<MultilevelTrial>(options, setup);
  }

 private:
  static nlohmann::ordered_json level_settings(const mlo::Problem& problem) {
    const mlo::Config& c = problem.config();
    return {{"method", mlo::name(c.type)},
            {"unroll", c.unroll_steps},
            {"warmup", c.warmup_steps},
            {"clip", c.gradient_clipping},
            {"iterations", std::pair{c.neumann_iterations, c.cg_iterations}},
            {"alpha", {c.darts_alpha, c.sama_adam_alpha, c.neumann_alpha, c.cg_alpha}},
            {"optimizer", problem.optimizer().rule().name()},
            {"lr", problem.optimizer().rate()}};
  }

  MultilevelOptions options_;
  std::string lowest_;
  double lowest_rate_ = 0.0;
};

}  // namespace

std::unique_ptr<Subject> multilevel_subject(const MultilevelOptions& options) {
  return std::make_unique<Multilevel>(options);
}

}  // namespace ebb::cli
