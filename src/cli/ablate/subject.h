// What a study trains: a workload of one level or of several. A row of the study is a way of
// training it, and each of its runs a trial.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/ablate/technique.h"
#include "cli/measure.h"
#include "ebb/report/source_lines.h"
#include "ebb/workloads/multilevel.h"

namespace ebb::cli {

// A workload about to be trained in one way. Takes no memory for tensors before the first step.
class Trial {
 public:
  virtual ~Trial() = default;

  // What a step will take: the whole batch, every level.
  virtual const Plan& plan() = 0;
  // The smallest budget this way of training can keep.
  virtual Bytes least_budget() = 0;

  struct Step {
    double loss = 0.0, ms = 0.0;
  };
  // Trains on the next batch.
  virtual Step step() = 0;
  // What the steps so far took.
  virtual Measured measured() = 0;
};

class Subject {
 public:
  virtual ~Subject() = default;

  // Every trial begins with the same weights and sees the same samples. The budget that the setup
  // names is for the whole.
  virtual std::unique_ptr<Trial> start(const Setup& setup) const = 0;

  std::int64_t batch = 0;       // items of a step
  std::int64_t parameters = 0;  // of all levels
  Traits traits;
  report::SourceLines sources;      // of the modules of all levels
  nlohmann::ordered_json settings;  // what decides its numbers: sizes, data, method
};

// `items`: train on the first so many only.
std::unique_ptr<Subject> single_level_subject(const workloads::Options& options,
                                              std::optional<std::int64_t> items);
std::unique_ptr<Subject> multilevel_subject(const workloads::MultilevelOptions& options);

// Sizes, seed, data and models, where they are given, and fingerprints of their files.
nlohmann::ordered_json size_settings(const workloads::Options& options);

}  // namespace ebb::cli
