#include "cli/resume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/checkpoint_folder.h"
#include "cli/folder_lock.h"
#include "cli/ranks.h"
#include "cli/sparsity.h"
#include "cli/verb.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;
using workloads::Difference;
using workloads::OnResume;

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void check_change_names(const TrainCommand& command) {
  std::vector<std::string> known = workloads::changeable_options(spec_of(command));
  known.emplace_back("data");
  if (command.workload().model) known.emplace_back("model");
  if (command.workload().adapter) known.emplace_back("adapter");
  for (const std::string& name : command.change)
    if (!contains(known, name))
      throw UsageError(fmt::format("--change {}: it can name {}", name, fmt::join(known, ", ")));
}

// The folder to resume from, if it contains anything.
std::optional<fs::path> folder_to_resume(const TrainCommand& command) {
  if (!command.resume) return {};
  if (*command.resume != "auto") {
    if (!fs::is_directory(*command.resume))
      throw UsageError(fmt::format("--resume {}: there is no such folder", *command.resume));
    if (command.checkpoint &&
        fs::weakly_canonical(*command.checkpoint) != fs::weakly_canonical(*command.resume))
      throw UsageError(
          fmt::format("--resume {} writes its checkpoints to the same folder, but --checkpoint {} "
                      "names another one: leave out --checkpoint",
                      *command.resume, command.checkpoint->string()));
    return *command.resume;
  }
  if (!command.checkpoint)
    throw UsageError(
        "--resume auto continues in the folder that --checkpoint names: add --checkpoint DIR");
  if (CheckpointFolder(*command.checkpoint, 1).holds_a_run()) return *command.checkpoint;
  return {};
}

workloads::DataFingerprint saved_data(const SavedRun& saved) {
  const auto text = saved.notes.find("data");
  if (text == saved.notes.end())
    throw FileError(fmt::format("{}: the data's fingerprint is missing", saved.file.string()));
  try {
    return workloads::data_fingerprint_from_json(text->second);
  } catch (const ValueError& error) {
    throw FileError(
        fmt::format("{}: the data's fingerprint: {}", saved.file.string(), error.what()));
  }
}

std::vector<Difference> data_differences(const workloads::DataFingerprint& before,
                                         const workloads::DataFingerprint& now) {
  std::vector<Difference> found;
  const auto of = [](const workloads::DataFingerprint& facts, const std::string& name) {
    const auto at = facts.find(name);
    return at == facts.end() ? std::string("not there") : at->second;
  };
  workloads::DataFingerprint all = before;
  all.insert(now.begin(), now.end());
  for (const auto& [name, fact] : all)
    if (of(before, name) != of(now, name))
      found.push_back({name.starts_with("model ")     ? "model"
                       : name.starts_with("adapter ") ? "adapter"
                                                      : "data",
                       fmt::format("({}) {}", name, of(before, name)), of(now, name)});
  return found;
}

// Throws if the run differs from the saved one.
void refuse(const SavedRun& saved, const std::vector<Difference>& differences) {
  if (differences.empty()) return;
  std::string told;
  std::vector<std::string> to_name;
  for (const Difference& d : differences) {
    told += fmt::format("{}{} was {} and is now {}{}", told.empty() ? "" : "; ", d.option, d.saved,
                        d.given,
                        d.on_resume == OnResume::never ? ", which makes it another run"
                        : d.option == "steps" ? ", which changes the whole learning-rate schedule"
                                              : "");
    if (d.on_resume == OnResume::by_name && !contains(to_name, d.option))
      to_name.push_back(d.option);
  }
  throw UsageError(fmt::format(
      "{}: the run differs from the saved one: {}; {}", saved.file.string(), told,
      to_name.empty()
          ? "leave it out to continue as saved"
          : fmt::format("leave out what shall stay as saved, or permit the change: --change {}",
                        fmt::join(to_name, ","))));
}

// Reports changed files before anything is made from them, because a size in the checkpoint may not
// even apply to them.
void check_files(const SavedRun& saved, const TrainCommand& command) {
  const std::optional<fs::path>& source = command.workload().data;
  if (source && !fs::exists(*source)) return;
  workloads::DataFingerprint before = saved_data(saved), now = workloads::files_fingerprint(source);
  now.merge(workloads::model_fingerprint(command.workload()));
  before.erase("items");
  std::vector<Difference> found = data_differences(before, now);
  std::erase_if(found, [&](const Difference& d) { return contains(command.change, d.option); });
  refuse(saved, found);
}

// Planning takes long, so this is found before it. Outputs takes the lock for the whole run.
void refuse_if_in_use(const std::optional<fs::path>& folder, const TrainCommand& command) {
  if (folder && leads(command.planning) && !command.print_config) FolderLock{*folder};
}

SavedRun run_in(const fs::path& folder) {
  const fs::path file = CheckpointFolder(folder, 1).to_resume();
  try {
    return read_run(file);
  } catch (const FileError& error) {
    fail_to_resume(file, error);
  }
}

}  // namespace

void fail_to_resume(const fs::path& file, const FileError& error) {
  const std::string way = CheckpointFolder(file.parent_path(), 1).way_around_damage();
  if (way.empty()) throw error;
  throw FileError(fmt::format("{}; {}", error.what(), way));
}

SavedRun read_run(const fs::path& file) {
  io::CheckpointSummary summary = io::read_summary(file);
  const auto text = summary.notes.find("spec");
  if (text == summary.notes.end())
    throw FileError(fmt::format("{}: it contains no specification of its run", file.string()));
  try {
    return {file, summary.step, workloads::train_spec_from_json(text->second),
            std::move(summary.notes)};
  } catch (const ValueError& error) {
    throw FileError(fmt::format("{}: the run's specification: {}", file.string(), error.what()));
  }
}

std::optional<SavedRun> saved_run(const CLI::App& app, TrainCommand& command) {
  const std::optional<fs::path> folder = folder_to_resume(command);
  refuse_if_in_use(folder ? folder : command.checkpoint, command);
  if (!folder) {
    check_change_names(command);
    if (command.checkpoint && CheckpointFolder(*command.checkpoint, 1).holds_a_run())
      throw UsageError(fmt::format(
          "--checkpoint {0}: the folder contains another run's checkpoint; continue that run "
          "(--resume {0}, or --resume auto with --checkpoint {0}), or choose another folder",
          command.checkpoint->string()));
    if (command.checkpoint_every && !command.checkpoint)
      throw UsageError("--checkpoint-every needs --checkpoint DIR or --resume DIR");
    settle_epochs(command);
    check_evaluation_options(command);
    return {};
  }
  command.checkpoint = folder;
  SavedRun saved = run_in(*folder);
  const std::string of = saved.spec.task.common.name;
  if (typed(app, "workload") && command.workload().name != of)
    throw UsageError(fmt::format("{}: the checkpoint is of the workload {}, not {}",
                                 saved.file.string(), of, command.workload().name));
  if (typed(app, "model") && of != workloads::folder_workload)
    throw UsageError(
        fmt::format("{}: the checkpoint is of the workload {}, not of a folder's model",
                    saved.file.string(), of));
  command.workload().name = of;
  const auto wanted = [&](const std::string& field) {
    // The number that auto found for the saved run is still valid, and no other gives the same
    // bits.
    if (field == "accumulate" && command.planning.accumulate == "auto") return false;
    // The saved run was started so on its own machine, with the memory available then.
    return field == "overcommit" || typed(app, field);
  };
  static_cast<workloads::TrainSpec&>(command) =
      workloads::overlaid(saved.spec, spec_of(command), wanted);
  command.planning.device = drivable_device(command.planning.device);
  check_change_names(command);
  check_files(saved, command);
  settle_epochs(command);
  check_evaluation_options(command);
  if (command.steps <= saved.step && *command.resume != "auto")
    throw UsageError(fmt::format(
        "the checkpoint is at step {}: --steps {} leaves nothing to do, use a larger number",
        saved.step, command.steps));
  return saved;
}

io::Notes notes_of(const workloads::TrainSpec& spec, const workloads::DataFingerprint& data) {
  return {{"spec", workloads::to_json(spec)}, {"data", nlohmann::json(data).dump()}};
}

std::vector<std::string> require_same(const SavedRun& saved, const TrainCommand& command,
                                      const workloads::TrainSpec& now,
                                      const workloads::DataFingerprint& data) {
  std::vector<Difference> all = workloads::differences(saved.spec, now);
  for (Difference& difference : data_differences(saved_data(saved), data))
    all.push_back(std::move(difference));
  std::vector<Difference> refused;
  std::vector<std::string> changed;
  for (Difference& d : all) {
    if (d.on_resume == OnResume::by_name && contains(command.change, d.option))
      changed.push_back(d.option);
    else
      refused.push_back(std::move(d));
  }
  refuse(saved, refused);
  return changed;
}

io::SavedState saved_state(const std::vector<std::string>& changed, const std::string& level) {
  const std::string prefix = level.empty() ? "" : level + ".";
  std::vector<const char*> fitting{"precision", "rounding", "master-bits", "clip", "clip-by"};
  for (const char* option : sparsity_option_names()) fitting.push_back(option);
  if (!level.empty()) fitting = {"precision", "clip", "method", "unroll", "accumulate"};
  if (contains(changed, prefix + "optimizer")) return io::SavedState::none;
  for (const char* option : fitting)
    if (contains(changed, prefix + option)) return io::SavedState::fitting;
  return io::SavedState::all;
}

}  // namespace ebb::cli
