// What `ebb train` trains: a workload of one level or of several, with its plan. `train_run` does
// the rest.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/evaluation.h"
#include "cli/outputs.h"
#include "cli/resume.h"
#include "ebb/arena.h"
#include "ebb/io/checkpoint.h"
#include "ebb/workloads/train_spec.h"
#include "ebb/workloads/workload.h"

namespace ebb::cli {

// One step of a run.
struct StepTaken {
  std::optional<double> loss = {};      // of the update that the step completes, if it does
  double ms = 0.0, processor_ms = 0.0;  // of the step alone, without waiting for data
  std::optional<double> rate = {};      // the learning rate of that update
};

class Trainee {
 public:
  virtual ~Trainee() = default;

  struct Facts {
    std::int64_t parameters = 0, batch = 0;
    std::map<std::string, workloads::DataPart> data = {};
    std::optional<workloads::Limit> limit = {};
    // Parameters that the folder of --model does not have, so that this run started them from
    // random numbers.
    std::vector<std::string> initialised = {};
  };
  virtual Facts facts() const = 0;

  // --- Memory
  // Memory of steps, from their plan. Its budget is for steps and evaluation together.
  virtual TrainingMemory memory() const = 0;
  virtual Bytes kept_by_evaluation() const = 0;  // see evaluation_keeps
  virtual Evaluation evaluation(std::int64_t batches) = 0;
  virtual const Arena& arena() const = 0;
  virtual Leaves leaves() = 0;
  virtual Bytes resident() = 0;

  // Reads the weights that the model starts from, where they are in files.
  virtual void load() {}

  // --- Checkpoints
  virtual workloads::TrainSpec spec() const = 0;  // with all defaults
  virtual workloads::DataFingerprint data_fingerprint() const = 0;
  // `changed`: the options that differ from the saved run's, as the user has requested.
  virtual void restore(const SavedRun& saved, const std::vector<std::string>& changed) = 0;
  virtual Bytes checkpoint_bytes() const = 0;
  virtual void save_checkpoint(const std::filesystem::path& file, const io::Notes& notes) = 0;
  // The first weight that is not finite, as error messages name it.
  virtual std::optional<std::string> non_finite_weight() const = 0;
  // The vocabulary of the data, to be saved with checkpoints; see Workload::tokenizer_json.
  virtual std::string tokenizer_json() const { return {}; }
  // All ranks, before `save_model`: brings ranges of the weights together.
  virtual void gather_model() {}
  // The leading rank: writes the trained model to a folder.
  virtual void save_model(const std::filesystem::path& folder) { (void)folder; }
  virtual Bytes saved_bytes() const { return {}; }  // approximately what `save_model` writes

  // A step may change the shapes of the model. Owners of its programs are notified before and
  // after.
  struct Reshaping {
    std::function<void()> before, after;
  };
  virtual void on_reshape(Reshaping reshaping) { (void)reshaping; }

  // --- Steps
  virtual std::int64_t step() const = 0;  // steps taken
  // Takes a step and logs its numbers. Throws NotFinite if the run must not go on.
  virtual StepTaken advance(Outputs& outputs) = 0;
  // After a step that threw: whether weights and state are those of the last complete step.
  virtual bool intact() const = 0;

  // --- Report, in addition to what all runs report
  virtual std::string_view counted() const = 0;  // "steps", "updates": what has a loss and a time
  virtual nlohmann::ordered_json fields() const = 0;
  virtual std::string data_text() const = 0;
  virtual std::string steps_text() const { return {}; }
  virtual std::string plan_text() const = 0;
  // Advice for numbers that are not finite.
  virtual std::string on_nan_hint() const = 0;
};

}  // namespace ebb::cli
