#include "ebb/workloads/multilevel.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ebb/error.h"
#include "ebb/optim/by_name.h"
#include "ebb/workloads/settings.h"
#include "workloads/families.h"

namespace ebb::workloads {
namespace {

struct MultilevelRow {
  const char* name;
  std::vector<std::string> levels;
  std::unique_ptr<MultilevelWorkload> (*make)(const MultilevelOptions&);
};

const std::vector<MultilevelRow>& multilevel_rows() {
  static const std::vector<MultilevelRow> all{
      {"reweight", {"classifier", "reweight"}, make_reweight}};
  return all;
}

const MultilevelRow& multilevel_row(const std::string& name) {
  for (const MultilevelRow& row : multilevel_rows())
    if (name == row.name) return row;
  throw ValueError(fmt::format("there is no multilevel workload \"{}\"; there are: {}", name,
                               fmt::join(multilevel_names(), ", ")));
}

}  // namespace

mlo::Config LevelOptions::over(mlo::Config config) const {
  config.type = method.value_or(config.type);
  config.unroll_steps = unroll.value_or(config.unroll_steps);
  config.gradient_accumulation = accumulate.value_or(config.gradient_accumulation);
  config.warmup_steps = warmup.value_or(config.warmup_steps);
  config.gradient_clipping = clip.value_or(config.gradient_clipping);
  config.precision = precision.value_or(config.precision);
  config.recompute = recompute.value_or(config.recompute);
  if (budget) config.budget = budget;
  if (form) config.form = form;
  if (iterations) config.neumann_iterations = config.cg_iterations = *iterations;
  if (alpha) {
    switch (config.type) {
      case mlo::Method::darts:
        config.darts_alpha = *alpha;
        break;
      case mlo::Method::sama:
        config.sama_adam_alpha = *alpha;
        break;
      case mlo::Method::neumann:
        config.neumann_alpha = *alpha;
        break;
      case mlo::Method::cg:
        config.cg_alpha = *alpha;
        break;
      case mlo::Method::reinforce:
        config.reinforce_alpha = *alpha;
        break;
      case mlo::Method::unrolled:
        throw ValueError("unrolled differentiation has no alpha");
    }
  }
  return config;
}

optim::Optimizer LevelOptions::over(const optim::Optimizer& own) const {
  if (optimizer) return optim::by_name(*optimizer, rate);
  return rate ? own.with_rate(*rate) : own;
}

namespace {

// The options that a level uses: defaults are filled in, options without effect are left empty.
LevelOptions used_by(const mlo::Problem& problem, const MultilevelOptions& asked) {
  const mlo::Config& config = problem.config();
  const auto said = asked.levels.find(problem.name());
  LevelOptions used;
  if (said != asked.levels.end())
    used.optimizer = said->second.optimizer, used.recompute = said->second.recompute,
    used.budget = said->second.budget;
  used.accumulate = config.gradient_accumulation;
  used.rate = problem.optimizer().rate();
  if (config.gradient_clipping > 0.0) used.clip = config.gradient_clipping;
  used.precision = config.precision;
  // No level above the highest, or above one that is trained alone, differentiates through it or
  // waits for it.
  if (asked.unweighted || problem.name() == level_names(asked.common.name).back()) return used;
  used.method = config.type;
  used.unroll = config.unroll_steps, used.warmup = config.warmup_steps;
  switch (config.type) {
    case mlo::Method::darts:
      used.alpha = config.darts_alpha;
      break;
    case mlo::Method::sama:
      used.alpha = config.sama_adam_alpha;
      break;
    case mlo::Method::neumann:
      used.alpha = config.neumann_alpha, used.iterations = config.neumann_iterations;
      break;
    case mlo::Method::cg:
      used.alpha = config.cg_alpha, used.iterations = config.cg_iterations;
      break;
    case mlo::Method::reinforce:
      used.alpha = config.reinforce_alpha;
      break;
    case mlo::Method::unrolled:
      break;
  }
  return used;
}

}  // namespace

DType LevelOptions::dtype() const { return parameter_dtype(precision.value_or(Precision::fp32)); }

std::vector<std::string> multilevel_names() {
  std::vector<std::string> names;
  for (const MultilevelRow& row : multilevel_rows()) names.emplace_back(row.name);
  return names;
}

bool is_multilevel(const std::string& workload) {
  for (const MultilevelRow& row : multilevel_rows())
    if (workload == row.name) return true;
  return false;
}

std::vector<std::string> level_names(const std::string& workload) {
  return multilevel_row(workload).levels;
}

std::unique_ptr<MultilevelWorkload> make_multilevel(const MultilevelOptions& options) {
  const MultilevelRow& row = multilevel_row(options.common.name);
  if (const auto wrong = misfit(options))
    throw ValueError(fmt::format("the option {} {}", name(wrong->setting), wrong->why));
  if (const auto wrong = level_misfit(options)) throw ValueError(*wrong);
  std::unique_ptr<MultilevelWorkload> made = row.make(options);
  MultilevelOptions& used = made->settings;
  add_asked(options.common, used.common);
  used.classifier = classifier_of(options);
  used.unweighted = options.unweighted;
  for (const mlo::Problem* problem : made->problems())
    used.levels[problem->name()] = used_by(*problem, options);
  return made;
}

}  // namespace ebb::workloads
