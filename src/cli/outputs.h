// What a run leaves behind: logs and checkpoints. They are tried before the first step. A later
// failure does not end the run: it is reported once, retried at the next occasion, and shown by the
// exit code.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/checkpoint_folder.h"
#include "cli/folder_lock.h"
#include "cli/train_command.h"
#include "ebb/error.h"
#include "ebb/io/checkpoint.h"
#include "ebb/report/run_log.h"

namespace ebb::cli {

// Makes the folder and writes a file into it, because only this shows whether it can be written to.
void try_folder(const std::filesystem::path& folder);

// A usage error if `output`, a folder or file to be written, is the input itself, or a file in the
// input's folder that holds a model, a run or a checkpoint.
void refuse_over_input(std::string_view output_option, const std::filesystem::path& output,
                       std::string_view input_option, const std::filesystem::path& input);

// A folder for results, tried before the work that produces them. A folder that did not exist
// before does not exist during the work either, nor afterwards if nothing was written to it.
class TriedFolder {
 public:
  explicit TriedFolder(std::filesystem::path folder);
  ~TriedFolder();
  TriedFolder(const TriedFolder&) = delete;
  TriedFolder& operator=(const TriedFolder&) = delete;

 private:
  void remove_new() const;

  const std::filesystem::path folder_;
  std::vector<std::filesystem::path> new_;  // made here: the folder, then its missing parents
};

// A log that is reopened after a failure: at the next step, then after 2 more, 4 more, ...
class PersistentLog {
 public:
  using Open = std::function<std::unique_ptr<report::RunLog>()>;
  explicit PersistentLog(Open open) : open_(std::move(open)), log_(open_()) {}

  // Each returns the failure, if there was one.
  std::optional<std::string> begin(std::int64_t step, std::string_view run);
  std::optional<std::string> scalar(std::string_view tag, std::int64_t step, double value);
  std::optional<std::string> close();

 private:
  Open open_;
  std::unique_ptr<report::RunLog> log_;
  std::int64_t next_try_ = 0, wait_ = 1;  // steps
};

class Outputs {
 public:
  // Makes the folders that the command names, writes a file into each, and opens the logs. Other
  // runs cannot write checkpoints to the same folder while this exists.
  explicit Outputs(const TrainCommand& command);

  void log(std::string_view tag, std::int64_t step, double value);
  // Writes to the log that this run continues from a step: records of later steps belong to a run
  // that was given up. `run` names this run.
  void begin_log(std::int64_t step);
  const std::string& run() const { return run_; }

  // Writes a checkpoint of the last complete step, with these notes in addition to its own.
  using Write = std::function<void(const std::filesystem::path&, const io::Notes&)>;
  struct Sizes {
    Bytes checkpoint, model;  // model: what --save writes
  };
  // Sets how checkpoints are written. An error if there is no room for them and the model.
  void keep_by(Write write, io::Notes notes, Sizes sizes, std::int64_t first_step);
  // To be called after every step: writes a checkpoint if one is due. The caller writes the last
  // step's.
  void after_step(std::int64_t step, double loss);
  // Writes one now, unless the newest is already of this step or none are kept. Returns whether the
  // newest checkpoint is of this step.
  bool keep(std::int64_t step);
  // Writes the checkpoint of this step as the best; does nothing if none are kept.
  void keep_best(std::int64_t step, double test_loss);
  // Adds a note to every checkpoint that is written from now on.
  void add_note(const std::string& name, std::string text) { notes_[name] = std::move(text); }
  // The step of the newest checkpoint that this run has written or started from.
  std::optional<std::int64_t> kept() const { return kept_; }
  std::int64_t steps() const { return steps_; }  // of the whole run
  const std::filesystem::path& checkpoint_path() const { return folder_->path(); }
  // Writes to standard error, on the leading rank only.
  void say(const std::string& line) const;
  bool keeps_checkpoints() const { return folder_.has_value(); }

  // To be called after the last step, with how the run ended: "is complete", "was interrupted".
  // Failures are reported accordingly from then on.
  void end(std::string how) { ended_ = std::move(how); }
  // Closes the logs, after `end`. Returns false if anything could not be written since the first
  // step.
  bool close();

  // Reports once that an output of this kind failed; the exit code shows it too.
  void note(std::string_view what, const std::string& failure);

 private:
  void require_room(Sizes sizes, std::int64_t first_step) const;
  void write(std::int64_t step, double loss, const io::Notes& notes);

  bool leads_;                       // of several ranks only the first writes and reports
  std::int64_t steps_, every_;       // every_: 0 for none during the run
  std::vector<PersistentLog> logs_;  // the first is log.jsonl
  std::string run_;                  // unique to this run; empty if no log records it
  std::optional<std::filesystem::path> save_;
  std::optional<FolderLock> lock_;
  std::optional<CheckpointFolder> folder_;
  Write write_;
  io::Notes notes_;
  std::optional<std::int64_t> kept_;
  double loss_sum_ = 0.0;  // since the last checkpoint
  std::int64_t loss_count_ = 0;
  std::string ended_;                // empty during training
  std::vector<std::string> failed_;  // kinds of outputs that have failed
};

// For a run that ends by an error after `step` complete steps: keeps a checkpoint if `intact` says
// that weights and state are still those of that step, and reports which checkpoint there is.
void keep_last_whole_step(Outputs& outputs, std::int64_t step, bool intact);
// Ends a training run whose numbers are not finite. The last checkpoint stays.
class NotFinite : public Error {
 public:
  using Error::Error;
};
std::string text_of_non_finite(double value);  // "inf", "-inf" or "nan"
// Each reports how a run ended and which checkpoint there is: by NotFinite,
void tell_not_finite(Outputs& outputs);
// by the loss of a rank,
void tell_lost_rank(Outputs& outputs, std::int64_t step);
// by a request to stop.
void tell_interruption(Outputs& outputs, std::int64_t step, std::int64_t steps);

}  // namespace ebb::cli
