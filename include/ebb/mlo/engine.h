// Runs a multilevel problem: steps of the lowest levels, and after their inner loops steps of the
// levels above, with hypergradients along every path. Each level is a planned program; all of them
// run in one arena.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ebb/mlo/dependencies.h"
#include "ebb/mlo/problem.h"
#include "ebb/program.h"
#include "ebb/train/ranks.h"

namespace ebb::io {
enum class SavedState : std::uint8_t;  // ebb/io/checkpoint.h
}

namespace ebb::mlo {

enum class Logger : std::uint8_t { none, json_lines, tensorboard };

struct EarlyStopping {
  enum class Mode : bool { min, max };
  Mode mode = Mode::min;
  std::int64_t tolerance = 5;  // validations in a row without improvement that end the run
  std::string metric = "loss";
};

struct EngineConfig {
  std::int64_t train_iters = 50000;  // steps of the lowest levels
  std::int64_t valid_step = 500;     // between two validations
  // After a step of the levels above, the levels below return to the start of their inner loop and
  // repeat its last update.
  bool roll_back = false;
  std::optional<EarlyStopping> early_stopping = {};
  // Only "default" exists: every rank has all levels on one device.
  std::string strategy = "default";
  // Leaves of every level's batches, and the ranks that share them; `compile.communicator` connects
  // the ranks. A problem's batches are then its rank's parts (data::part_of_batches). Every loss,
  // gradient and hypergradient is summed over the leaves of all ranks in one order, so that the
  // number of ranks changes no bit. Levels share nothing but batches: Shard::nothing.
  RankOptions ranks = {};
  Logger logger = Logger::none;
  bool progress = false;  // a line on standard error (ebb/report/progress.h), of the lowest level
  std::filesystem::path log_folder = "log";  // log.jsonl, or TensorBoard's event files

  std::uint64_t seed = 0;  // problem i draws its weights and masks with seed + i
  // For all programs: rates, machine, fusion. Seed, arena, recomputation and budget are set by the
  // engine and the problems' configs. With budgets of other tiers (`compile.plan.offload`),
  // variables of all levels are kept outside the device as far as the budgets of the levels require
  // it.
  CompileOptions compile = {};
};

class Engine {
 public:
  // The problems must outlive the engine.
  Engine(std::vector<Problem*> problems, const Dependencies& dependencies,
         const EngineConfig& config = {});
  virtual ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Steps until train_iters are taken, or early stopping ends it.
  void run();
  // One step of every lowest level, and the steps of higher levels that it triggers.
  void train_step();
  // After a train_step that ended by an exception: whether everything is as it was before it, so
  // that it can be saved. Otherwise a level has begun to change its variables.
  bool intact() const;

  // Called every valid_step steps: metrics of the current state. Early stopping uses them.
  virtual Stats validation() { return {}; }

  std::int64_t global_step() const;
  bool stopped_early() const;
  Problem& problem(std::string_view name) const;
  const EngineConfig& config() const { return config_; }

  // Where all programs run; evaluation can run there too (EvalStep(..., {.arena = ...})).
  const std::shared_ptr<Arena>& arena() const;

  // The memory that training will take. Makes plans, runs nothing.
  struct LevelPlan {
    std::string problem;
    Plan plan;          // of an update
    double runs = 1.0;  // of its programs in a step of the engine, on average
  };
  struct WholePlan {
    std::vector<LevelPlan> levels;
    Bytes arena;       // the largest of the levels'
    Bytes persistent;  // parameters, buffers and all other state, each once
    Bytes peak;        // both
    // One plan with an update of every level in sequence, for display only. Its times are averages
    // per step of the engine, as higher levels step less often.
    Plan together;
  };
  WholePlan plan();
  // The smallest budget that all levels can meet, regardless of their configs.
  Bytes least_budget();
  // Resident memory of everything that the plan counts.
  Bytes resident() const;
  // What variables hold in each tier, and their traffic with files so far (see Program).
  ByTier<Bytes> held() const;
  Program::FileTraffic file_traffic() const;
  // Constants and variables of all programs that have been compiled, and all state of the levels.
  Leaves leaves() const;

  // The whole state in one file, written whole or not at all: a run that is resumed from it repeats
  // the same bits. If the file is damaged or does not match, nothing is changed. Notes are the
  // caller's own texts (io::Notes). With several ranks all of them call it and write together; the
  // path and the notes are rank 0's.
  void save(const std::filesystem::path& file,
            const std::map<std::string, std::string>& notes = {});
  // Levels named in `changed` have another optimizer or inner loop than the saved one. They load
  // weights and buffers, load as much of the optimizer's state as their SavedState says, and begin
  // a new inner loop: batches of an unfinished update are dropped.
  std::map<std::string, std::string> load(
      const std::filesystem::path& file, const std::map<std::string, io::SavedState>& changed = {});

 private:
  struct State;
  EngineConfig config_;
  std::unique_ptr<State> state_;
};

}  // namespace ebb::mlo
