// The report of a finished run of `ebb train`: text for people, or fields of a JSON document.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/memory_check.h"
#include "cli/run_loop.h"
#include "cli/train_command.h"
#include "cli/trainee.h"
#include "ebb/machine.h"

namespace ebb::cli {

struct RunResult {
  LoopResult loop;
  Bytes peak;             // planned, of steps and evaluation
  Bytes measured, fixed;  // of steps and evaluation; of the process beside them
  std::optional<Evaluation> evaluation = {};
  std::vector<double> metrics = {};  // of evaluation: the loss, then the accuracy if there is one
  std::int64_t steps = 0;            // taken in all, with those before a resumed run began
  EarlyStopping stopping = EarlyStopping();
  MachineReport machine = {};
  Kept kept = {};
  std::optional<std::int64_t> saved_step = {};  // of what --save wrote, with --keep-best
  std::string per_rank = {};  // with several ranks: a JSON list of what each tells
};

void print_run(const TrainCommand& command, const Trainee& trainee, const RunResult& result);
nlohmann::ordered_json run_fields(const TrainCommand& command, const Trainee& trainee,
                                  const RunResult& result);

}  // namespace ebb::cli
