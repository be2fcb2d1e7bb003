#include "cli/save_model.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/checkpoint_folder.h"
#include "cli/ranks.h"
#include "cli/verb.h"
#include "core/json.h"
#include "ebb/error.h"

namespace ebb::cli {
namespace {

// A new folder in the system's place for temporary files, or here if there is none.
std::filesystem::path temporary_folder() {
  std::error_code error;
  std::string path = std::filesystem::temp_directory_path(error) / "ebb-model-XXXXXX";
  if (!mkdtemp(path.data()))
    throw FileError(fmt::format("{}: cannot make the folder: {}", path, std::strerror(errno)));
  return path;
}

// Makes the weights ready for `Trainee::save_model` on the leading rank.
void gather_finite_model(Trainee& trainee, const PlanningOptions& planning) {
  require_finite_weights(trainee, planning);
  trainee.gather_model();
}

// A FileError if the weights with the lowest test loss are not there: without --keep-best,
// best.safetensors has those with the lowest training loss.
void restore_best(const TrainCommand& command, Trainee& trainee, const EarlyStopping& stopping) {
  const std::optional<std::int64_t> best = stopping.best_step();
  if (!command.keep_best || !best || *best == trainee.step()) return;
  const SavedRun saved = read_run(CheckpointFolder(*command.checkpoint, command.keep).best());
  if (saved.step != *best)
    throw FileError(fmt::format("{}: it is of step {}, but the lowest test loss was after step {}",
                                saved.file.string(), saved.step, *best));
  trainee.restore(saved, {});
}

// What to do with a run that is complete in order to continue it.
std::string how_to_continue(const TrainCommand& command, std::int64_t step) {
  return step < command.steps ? "--patience has ended it: use a larger one to continue it"
                              : "to continue it, use a larger --steps";
}

}  // namespace

bool saves(const PlanningOptions& planning) {
  return leads(planning) || weights_are_ranges(planning);
}

void require_finite_weights(const Trainee& trainee, const PlanningOptions& planning) {
  if (planning.on_nan == "ignore") return;
  const std::string weight = weight_of_any_rank(planning, trainee.non_finite_weight().value_or(""));
  if (!weight.empty())
    throw NotFinite(fmt::format(
        "step {}: {} is not finite after the step, so no checkpoint or model is written; {}",
        trainee.step(), weight, trainee.on_nan_hint()));
}

void save_model(Trainee& trainee, const TrainCommand& command, Outputs& outputs) {
  gather_finite_model(trainee, command.planning);
  if (!leads(command.planning)) return;
  try {
    trainee.save_model(*command.save);
  } catch (const FileError& error) {
    outputs.note("the model of --save", error.what());
    const std::filesystem::path other = temporary_folder();
    trainee.save_model(other);
    outputs.say(fmt::format("ebb: the model is in {} instead: move it from there", other.string()));
  }
}

std::int64_t return_to_best(const TrainCommand& command, Trainee& trainee,
                            const EarlyStopping& stopping, Outputs& outputs) {
  try {
    restore_best(command, trainee, stopping);
  } catch (const FileError& error) {
    outputs.note("reading the weights with the lowest test loss", error.what());
  }
  return trainee.step();
}

int end_complete_run(const TrainCommand& command, Trainee& trainee, const EarlyStopping& stopping,
                     Output output) {
  const std::int64_t step = trainee.step();
  int code = success;
  if (command.save && saves(command.planning)) {
    if (leads(command.planning)) try_folder(*command.save);
    try {
      restore_best(command, trainee, stopping);
    } catch (const FileError& error) {  // --keep-best is for one rank
      std::cerr << "ebb: error: --save writes the weights of the last step: " << error.what()
                << std::endl;
      code = failure;
    }
    gather_finite_model(trainee, command.planning);
    if (leads(command.planning)) trainee.save_model(*command.save);
  }
  if (!leads(command.planning)) return success;
  std::cerr << fmt::format(
                   "ebb: the run in {} is complete, with {} steps: {}; {}",
                   command.checkpoint->string(), step,
                   command.save ? "only its model was saved again" : "nothing is left to do",
                   how_to_continue(command, step))
            << std::endl;
  nlohmann::ordered_json fields{{"workload", command.workload().name},
                                {"steps", step},
                                {"losses", nlohmann::ordered_json::array()},
                                {"checkpoint", command.checkpoint->string()}};
  if (command.save) fields["saved_step"] = trainee.step();
  if (output == Output::json) std::cout << json_text(fields) << "\n";
  return code;
}

}  // namespace ebb::cli
