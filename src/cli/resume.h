// Going on with a run that a checkpoint holds: what is taken from it, and what must agree with it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/train_command.h"
#include "ebb/io/checkpoint.h"
#include "ebb/workloads/data_fingerprint.h"

namespace ebb::cli {

struct SavedRun {
  std::filesystem::path file;
  std::int64_t step = 0;
  workloads::TrainSpec spec;
  io::Notes notes;
};

// What a checkpoint tells of its run.
SavedRun read_run(const std::filesystem::path& file);

// The run that the command resumes; the command then has the run's values wherever nothing was
// typed, and keeps its checkpoint there. Without one, the folder for checkpoints must not hold any.
std::optional<SavedRun> saved_run(const CLI::App& app, TrainCommand& command);

// What every checkpoint's notes hold.
io::Notes notes_of(const workloads::TrainSpec& spec, const workloads::DataFingerprint& data);

// An error that tells each difference between the saved run and this one, unless the command asks
// for that change by name. Gives the options that were changed so.
std::vector<std::string> require_same(const SavedRun& saved, const TrainCommand& command,
                                      const workloads::TrainSpec& now,
                                      const workloads::DataFingerprint& data);

// What of an optimizer's state can be taken over after these changes, for the whole run or one of
// its levels.
io::SavedState saved_state(const std::vector<std::string>& changed, const std::string& level = {});

}  // namespace ebb::cli
