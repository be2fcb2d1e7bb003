#include "cli/train_command.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "cli/member_of.h"
#include "cli/memory_check.h"
#include "cli/multilevel_options.h"
#include "cli/numbers.h"
#include "cli/pruning.h"
#include "cli/ranks.h"
#include "cli/sparsity.h"
#include "cli/verb.h"
#include "cli/workload_options.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;

std::optional<fs::path> whole(const std::optional<fs::path>& path) {
  if (!path) return {};
  return fs::absolute(*path).lexically_normal();
}

}  // namespace

bool TrainCommand::several_levels() const { return workloads::is_multilevel(workload().name); }

void add_train_options(CLI::App& app, TrainCommand& c) {
  add_workload_options(app, c.workload(), Levels::several);
  add_multilevel_options(app, c.task);
  add_planning_options(app, c.planning);
  add_rank_options(app, c.planning);
  add_masks_option(app, c.planning.sparsity);
  add_prune_options(app, c.planning.prune);
  app.add_option("--steps", c.steps, "Steps in all")->check(WholeNumber(1))->capture_default_str();
  app.add_option("--epochs", c.epochs,
                 "Number of passes over the training data, instead of --steps")
      ->check(WholeNumber(1, 1000000000))
      ->type_name("N");
  app.add_option("--lr", c.rate, "Learning rate; default: the workload's own, 5e-5 with --model")
      ->check(FiniteNumber::not_negative());
  app.add_option("--warmup", c.warmup, "Steps over which the learning rate rises from 0")
      ->check(WholeNumber(0))
      ->capture_default_str();
  app.add_option("--schedule", c.schedule, "The learning rate after the warm-up")
      ->check(member_of({"constant", "cosine", "linear"}))
      ->capture_default_str();
  app.add_option("--eval-batches", c.eval_batches,
                 "Test batches of an evaluation; 0: no evaluation")
      ->check(WholeNumber(0))
      ->capture_default_str();
  app.add_option("--eval-every", c.eval_every,
                 "Also evaluate every N steps, within the same budget; training does not change. "
                 "Default: only at the end")
      ->check(WholeNumber(1))
      ->type_name("N");
  app.add_option(
         "--patience", c.patience,
         "End the run after N evaluations in a row without a lower test loss; default: never")
      ->check(WholeNumber(1))
      ->type_name("N");
  add_overcommit_option(app, c.overcommit);
  CLI::Option* plan = app.add_option("--plan", c.plan,
                                     "Run the plan in this file, written by ebb plan --save for "
                                     "the same options, instead of making one")
                          ->type_name("FILE")
                          ->check(existing_file_at());
  for (const char* decides :
       {"--budget", "--host-budget", "--disk-budget", "--offload", "--recompute", "--whole-process",
        "--lanes", "--loss-walks", "--without"})
    plan->excludes(decides);
  app.add_flag("--print-config", c.print_config,
               "Print the run as a TOML file for --config, and do not train");
  const char* outputs = "Outputs";
  app.add_option("--checkpoint", c.checkpoint,
                 "Folder for the checkpoint, which is written at the end; it must not contain "
                 "another run's, except with --resume. Default: no checkpoint")
      ->type_name("DIR")
      ->group(outputs);
  app.add_option("--checkpoint-every", c.checkpoint_every,
                 "Also write a checkpoint every N steps; default: only at the end")
      ->check(WholeNumber(1))
      ->group(outputs);
  app.add_option("--keep", c.keep,
                 "Number of newest checkpoints to keep; from 2 on also the best one, by mean "
                 "training loss since the previous checkpoint, not by evaluation")
      ->check(WholeNumber(1, 1000000))
      ->capture_default_str()
      ->type_name("N")
      ->group(outputs);
  app.add_flag("--keep-best", c.keep_best,
               "Also keep the checkpoint with the lowest test loss, as best.safetensors; evaluated "
               "every --eval-every steps and after the last step")
      ->group(outputs);
  app.add_option("--resume", c.resume,
                 "Continue from the checkpoint in this folder, and write new ones there; options "
                 "that are not given are taken from the checkpoint. auto: from the folder of "
                 "--checkpoint, if it contains one")
      ->type_name("DIR|auto")
      ->group(outputs);
  app.add_option("--change", c.change, "Options, such as lr,batch, that a resumed run may change")
      ->delimiter(',')
      ->type_name("NAMES")
      ->needs("--resume")
      ->group(outputs);
  app.add_option("--save", c.save,
                 "Write the model as a Hugging Face folder (gpt2, bert, llama, --model); with "
                 "--keep-best, as it was at the lowest test loss")
      ->type_name("DIR")
      ->group(outputs);
  app.add_option("--log", c.log,
                 "Folder for JSON lines and TensorBoard logs, and for the summary of the run: "
                 "summary.html, and run.json for ebb compare; default: no log")
      ->type_name("DIR")
      ->group(outputs);
}

std::int64_t steps_of_epochs(std::int64_t epochs, std::int64_t batches) {
  std::int64_t steps = 0;
  if (__builtin_mul_overflow(epochs, batches, &steps))
    throw UsageError(fmt::format("--epochs {} of {} batches are more steps than can be counted",
                                 epochs, batches));
  return steps;
}

void settle_epochs(TrainCommand& command) {
  if (!command.epochs) return;
  std::int64_t items = 0, batch = 1;
  if (command.several_levels()) {
    check_workload_options(command.task);
    const auto task = workloads::make_multilevel(command.task);
    items = task->parts.at("train").items, batch = task->batch_size;
  } else {
    check_workload_options(command.workload());
    const auto task = workloads::make_workload(command.workload());
    items = task->train->size(), batch = task->batch_size;
  }
  // The incomplete last batch of an epoch is not used (workloads::training_loader).
  command.steps = steps_of_epochs(*command.epochs, items / batch);
}

void check_evaluation_options(const TrainCommand& c) {
  if (c.eval_every && c.eval_batches == 0)
    throw UsageError(
        "--eval-every has no effect with --eval-batches 0, which turns evaluation off: leave out "
        "one of them");
  if (c.patience && !c.eval_every)
    throw UsageError("--patience counts evaluations: add --eval-every N");
  if (c.keep_best && !c.eval_every)
    throw UsageError("--keep-best needs evaluations: add --eval-every N");
  for (const auto& [given, option] :
       {std::pair{c.keep_best, "--keep-best"}, {c.keep > 1, "--keep"}})
    if (given && !c.checkpoint)
      throw UsageError(fmt::format("{} needs --checkpoint DIR or --resume DIR", option));
}

workloads::TrainSpec spec_of(const TrainCommand& command) {
  workloads::TrainSpec spec = command;
  spec.task.common.data = whole(spec.task.common.data);
  spec.task.common.model = whole(spec.task.common.model);
  spec.task.common.adapter = whole(spec.task.common.adapter);
  spec.log = whole(spec.log);
  spec.planning.sparsity.masks = whole(spec.planning.sparsity.masks);
  return spec;
}

void fill_in(workloads::TrainSpec& spec, const workloads::Workload& task,
             const optim::Optimizer& optimizer) {
  const std::optional<fs::path> data = spec.task.common.data, model = spec.task.common.model,
                                adapter = spec.task.common.adapter;
  spec.task.common = task.settings;
  spec.task.common.data = data, spec.task.common.model = model;
  spec.task.common.adapter = adapter;
  spec.rate = optimizer.rate(), spec.rule = optimizer.description();
}

void fill_in(workloads::TrainSpec& spec, workloads::MultilevelWorkload& task) {
  const workloads::TrainSpec said = spec;
  spec.task = task.settings;
  spec.task.common.data = said.task.common.data;
  for (const mlo::Problem* problem : task.problems()) {
    const std::string& name = problem->name();
    spec.level_rules[name] = problem->optimizer().description();
    // Values that a level got from an option for the whole belong to that option.
    const auto own = said.task.levels.find(name);
    workloads::LevelOptions& level = spec.task.levels[name];
    level.recompute.reset(), level.budget.reset();
    if (own != said.task.levels.end())
      level.recompute = own->second.recompute, level.budget = own->second.budget;
  }
}

bool typed(const CLI::App& app, const std::string& field) {
  const auto given = [&](const std::string& name) {
    const CLI::Option* option = app.get_option_no_throw("--" + name);
    return option && option->count() > 0;
  };
  if (given(field) || (field == "steps" && given("epochs"))) return true;
  const std::size_t dot = field.rfind('.');
  const std::string level = dot == std::string::npos ? "" : field.substr(0, dot + 1),
                    last = field.substr(dot == std::string::npos ? 0 : dot + 1);
  if (last == "lr" && given(level + "optimizer")) return true;
  if (level.empty()) return false;
  if (last == "alpha" || last == "iterations") return typed(app, level + "method");
  // Options for the whole that apply to every level.
  return (last == "precision" || last == "recompute" || last == "budget") && given(last);
}

}  // namespace ebb::cli
