// Continues a run from a checkpoint: what is taken from it, and what must agree with it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/train_command.h"
#include "ebb/error.h"
#include "ebb/io/checkpoint.h"
#include "ebb/workloads/data_fingerprint.h"

namespace ebb::cli {

struct SavedRun {
  std::filesystem::path file;
  std::int64_t step = 0;
  workloads::TrainSpec spec;
  io::Notes notes;
};

// Reads what a checkpoint records about its run.
SavedRun read_run(const std::filesystem::path& file);

// Throws an error of reading a checkpoint again; if the file is damaged, with what to do to
// continue from an intact one of its folder.
[[noreturn]] void fail_to_resume(const std::filesystem::path& file, const FileError& error);

// The run that the command resumes. The command then takes the run's values for everything that was
// not typed, and keeps its checkpoints there. If it resumes none, the folder for checkpoints must
// not contain any. Only with --resume auto may the run be complete already.
std::optional<SavedRun> saved_run(const CLI::App& app, TrainCommand& command);

// The notes that every checkpoint has.
io::Notes notes_of(const workloads::TrainSpec& spec, const workloads::DataFingerprint& data);

// Throws an error with each difference between the saved run and this one, except changes that the
// command asks for by name. Returns the options that were changed that way.
std::vector<std::string> require_same(const SavedRun& saved, const TrainCommand& command,
                                      const workloads::TrainSpec& now,
                                      const workloads::DataFingerprint& data);

// How much of an optimizer's state can be loaded after these changes, for the whole run or one of
// its levels.
io::SavedState saved_state(const std::vector<std::string>& changed, const std::string& level = {});

}  // namespace ebb::cli
