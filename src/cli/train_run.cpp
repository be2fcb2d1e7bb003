#include "cli/train_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/measure.h"
#include "cli/memory_check.h"
#include "cli/run_loop.h"
#include "cli/run_report.h"
#include "cli/verb.h"
#include "core/json.h"

namespace ebb::cli {
namespace {

// Takes over the saved run's state, if there is one. Gives the notes of this run's checkpoints.
io::Notes resumed(Trainee& trainee, const TrainCommand& command,
                  const std::optional<SavedRun>& saved) {
  if (!command.checkpoint) return {};
  const workloads::TrainSpec spec = trainee.spec();
  const workloads::DataFingerprint data = trainee.data_fingerprint();
  if (saved) trainee.restore(*saved, require_same(*saved, command, spec, data));
  return notes_of(spec, data);
}

// Gradients may overflow where losses do not, and with them the weights.
void require_finite_weights(const Trainee& trainee, const PlanningOptions& planning) {
  if (planning.on_nan == "ignore") return;
  if (const auto weight = trainee.non_finite_weight())
    throw NotFinite(fmt::format("{} is not finite after the last step, so that it is not saved; {}",
                                *weight, trainee.on_nan_hint()));
}

void measure(RunResult& result, Trainee& trainee, const MemoryMeter& meter, Device device) {
  const Measured taken = meter.read(trainee.leaves(), trainee.resident());
  // On a GPU the driver's figure has what evaluation keeps in it.
  const bool counted = device.kind == Device::Kind::cuda;
  result.measured = counted ? taken.total : taken.total + trainee.kept_by_evaluation();
  result.fixed = meter.beside(taken);
}

}  // namespace

int train_run(const TrainCommand& command, const std::optional<SavedRun>& saved, Output output,
              const std::function<std::unique_ptr<Trainee>()>& make) {
  const PlanningOptions& planning = command.planning;
  const Device device = device_of(planning);
  std::optional<PinnedThreads> pinned;
  if (planning.machine.pin_threads) pinned.emplace();
  const MemoryMeter meter(device);
  const std::unique_ptr<Trainee> made = make();
  Trainee& trainee = *made;
  io::Notes notes = resumed(trainee, command, saved);

  RunResult result;
  result.peak = trainee.memory().peak();
  if (command.eval_batches > 0) {
    result.evaluation.emplace(trainee.evaluation(command.eval_batches));
    result.peak = std::max(result.peak, result.evaluation->peak());
  }
  require_memory(result.peak, device, command.overcommit);
  trainee.load();
  Outputs outputs(command);
  outputs.keep_by(
      [&](const std::filesystem::path& file, const io::Notes& own) {
        require_finite_weights(trainee, planning);
        trainee.save_checkpoint(file, own);
      },
      std::move(notes), trainee.checkpoint_bytes(), trainee.step());

  result.loop = run_loop(trainee, command.workload().name, command.steps, outputs);
  if (result.loop.signal != 0) return 128 + result.loop.signal;
  outputs.keep(trainee.step());
  if (result.evaluation) result.metrics = result.evaluation->run();
  measure(result, trainee, meter, device);
  result.machine = trainee.arena().report();
  if (pinned) result.machine.pinned_threads = pinned->grant();
  if (command.save) {
    require_finite_weights(trainee, planning);
    trainee.save_model();
  }
  result.kept = kept_budget(planning, trainee.memory().budget, result.measured);
  if (output == Output::json)
    std::cout << json_text(run_fields(command, trainee, result)) << "\n";
  else
    print_run(command, trainee, result);
  return outputs.close() ? result.kept.report() : failure;
}

}  // namespace ebb::cli
