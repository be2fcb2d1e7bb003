// `ebb train`: trains a workload and reports what it took.
#include <iostream>

#include "cli/level_rules.h"
#include "cli/multilevel.h"
#include "cli/outputs.h"
#include "cli/planning.h"
#include "cli/print_config.h"
#include "cli/ranks.h"
#include "cli/resume.h"
#include "cli/single_level.h"
#include "cli/train_command.h"
#include "cli/verb.h"
#include "cli/workload_options.h"

namespace ebb::cli {
namespace {

class Train : public Verb {
 public:
  Train()
      : Verb("train", "Train a workload within a memory budget",
             "ebb train --workload lm --steps 200") {}

 protected:
  void configure(CLI::App& app) override {
    config_.attach(app);
    add_train_options(app, command_);
  }

  int run() override {
    if (given(app(), "--steps") && given(app(), "--epochs"))
      throw UsageError(
          "--steps and --epochs both set the length of the run: leave out one of them");
    join_ranks(app(), planning_);
    // A resumed run has the saved options, but the current ranks.
    const int ranks = planning_.ranks, rank = planning_.rank, gpu = planning_.gpu;
    const auto communicator = planning_.communicator;
    const std::optional<SavedRun> saved = saved_run(app(), command_);
    planning_.ranks = ranks, planning_.rank = rank, planning_.gpu = gpu;
    planning_.communicator = communicator;
    if (saved && ranks == 1 && !typed(app(), "shard")) planning_.shard = "0";
    if (command_.keep_best)
      refuse_ranks(planning_, "--keep-best is for one rank, but there are several");
    const Output output = json() ? Output::json : Output::text;
    if (command_.several_levels()) {
      if (command_.plan)
        throw UsageError("--plan runs one program; " + workload_.name + " has several");
      check_workload_options(command_.task);
      refuse_single_level_options(command_);
      if (!saved) refuse_fast_alone(planning_);
      settle_ranks(planning_);
      if (command_.print_config) return print_config(multilevel_spec(command_));
      return train_multilevel(command_, saved, output);
    }
    refuse_multilevel_options(app(), workload_.name);
    check_workload_options(workload_);
    if (given(app(), "--merge") && workload_.merge && !command_.save)
      throw UsageError("--merge decides how --save writes the model: add --save DIR");
    if (command_.save && workload_.model)
      refuse_over_input("--save", *command_.save, "--model", *workload_.model);
    if (command_.save && workload_.adapter)
      refuse_over_input("--save", *command_.save, "--adapter", *workload_.adapter);
    if (workload_.model && !workload_.data)
      throw UsageError("--model needs --data FILE: text or tokens to train on");
    if (!saved) refuse_fast_alone(planning_);
    settle_ranks(planning_);
    if (command_.plan) stand_for_planning();
    workload_ = placed(workload_, planning_);
    if (command_.print_config) return print_config(single_level_spec(command_));
    return train_single_level(command_, saved, output);
  }

 private:
  // A plan from a file replaces the planning options of a resumed run.
  void stand_for_planning() {
    if (planning_.ranks > 1) throw UsageError("--plan is for one rank, but there are several");
    if (planning_.accumulate == "auto")
      throw UsageError(
          "--plan is for one number of micro-batches, but --accumulate auto chooses it: use "
          "--accumulate N");
    planning_.budget.reset(), planning_.recompute.reset();
    planning_.whole_process = false;
  }

  int print_config(const workloads::TrainSpec& spec) const {
    std::cout << config_text(app(), command_, spec);
    return success;
  }

  TrainCommand command_;
  workloads::Options& workload_ = command_.workload();
  PlanningOptions& planning_ = command_.planning;
};

}  // namespace

std::unique_ptr<Verb> train_verb() { return std::make_unique<Train>(); }

}  // namespace ebb::cli
