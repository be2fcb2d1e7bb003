#include "cli/train_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/checkpoint_folder.h"
#include "cli/interrupt.h"
#include "cli/late_options.h"
#include "cli/link_traffic.h"
#include "cli/measure.h"
#include "cli/memory_check.h"
#include "cli/page_data.h"
#include "cli/process_memory.h"
#include "cli/ranks.h"
#include "cli/run_loop.h"
#include "cli/run_report.h"
#include "cli/run_summary.h"
#include "cli/save_model.h"
#include "cli/verb.h"
#include "cli/waiting.h"
#include "core/json.h"
#include "ebb/communicator.h"
#include "ebb/threads.h"

namespace ebb::cli {
namespace {

// Loads the saved run's state, if there is one. Returns the notes of this run's checkpoints.
io::Notes resumed(Trainee& trainee, const TrainCommand& command,
                  const std::optional<SavedRun>& saved) {
  if (!command.checkpoint) return {};
  const workloads::TrainSpec spec = trainee.spec();
  const workloads::DataFingerprint data = trainee.data_fingerprint();
  if (saved) {
    const std::vector<std::string> changed = require_same(*saved, command, spec, data);
    try {
      trainee.restore(*saved, changed);
    } catch (const FileError& error) {
      fail_to_resume(saved->file, error);
    }
  }
  return notes_of(spec, data);
}

// Another run may have come and gone while this one was planned.
void require_unchanged(const TrainCommand& command, const std::optional<SavedRun>& saved) {
  if (!command.checkpoint || !leads(command.planning)) return;
  constexpr std::int64_t none = -1;
  const std::int64_t before = saved ? saved->step : none;
  if (CheckpointFolder(*command.checkpoint, 1).latest_step().value_or(none) != before)
    throw FileError(fmt::format("{}: another run has written a checkpoint to this folder meanwhile",
                                command.checkpoint->string()));
}

// An encoder's folder may lack the head or have another one, and nothing else would show that.
void tell_initialised(const TrainCommand& command, const Trainee& trainee, const Outputs& outputs) {
  constexpr std::size_t most = 4;
  std::vector<std::string> names = trainee.facts().initialised;
  if (names.empty()) return;
  const std::size_t more = names.size() - std::min(most, names.size());
  names.resize(names.size() - more);
  outputs.say(fmt::format("ebb: {} has no {}{}: training starts them from random numbers",
                          command.workload().model->string(), fmt::join(names, ", "),
                          more > 0 ? fmt::format(" and {} more", more) : ""));
}

// Records the most memory taken so far.
void measure(RunResult& result, Trainee& trainee, const MemoryMeter& meter, Device device,
             const PlanningOptions& planning) {
  const Measured taken = meter.read(trainee.leaves(), trainee.resident());
  // On a GPU the driver's figure includes what evaluation keeps.
  const bool counted = device.kind == Device::Kind::cuda;
  result.measured =
      std::max(result.measured, counted ? taken.total : taken.total + trainee.kept_by_evaluation());
  result.fixed = meter.beside(taken);
  // Other ranks of this process hold as much memory as this one.
  if (in_one_process(planning))
    result.fixed = std::max(Bytes{}, result.fixed - (planning.ranks - 1) * taken.total);
}

// Every rank takes part. Afterwards all ranks know whether rank 0 could write, so that they agree
// on which checkpoints exist.
void save_on_all(Trainee& trainee, const PlanningOptions& planning,
                 const std::filesystem::path& file, const io::Notes& notes) {
  if (!planning.communicator) return trainee.save_checkpoint(file, notes);
  std::string failure;
  try {
    trainee.save_checkpoint(file, notes);
  } catch (const FileError& error) {
    failure = error.what();
  }
  failure = planning.communicator->broadcast(failure, 0, "the end of a checkpoint");
  if (!failure.empty()) throw FileError(failure);
}

// Time that steps spend in exchanges with other ranks, and what they send.
class RankClock {
 public:
  struct Read {
    double waited_ms = 0.0;  // of a step, on average
    std::int64_t sent = 0;   // bytes of a step
  };
  explicit RankClock(const PlanningOptions& planning) : communicator_(planning.communicator) {
    if (communicator_) waited_ = communicator_->waited_ms(), sent_ = communicator_->bytes_sent();
  }
  Read read(std::size_t steps) const {
    if (!communicator_ || steps == 0) return {};
    return {(communicator_->waited_ms() - waited_) / static_cast<double>(steps),
            (communicator_->bytes_sent() - sent_) / static_cast<std::int64_t>(steps)};
  }

 private:
  std::shared_ptr<Communicator> communicator_;
  double waited_ = 0.0;
  std::int64_t sent_ = 0;
};

// On a GPU a recorded step contains its exchanges: the host cannot time them, and the bytes sent
// are taken from the plan.
nlohmann::ordered_json rank_fields(const RunResult& result, const RankClock::Read& clock,
                                   const PlanningOptions& planning, Trainee& trainee) {
  const Plan& plan = trainee.memory().plan;
  const bool gpu = plan.device.kind == Device::Kind::cuda;
  nlohmann::ordered_json fields{{"rank", planning.rank},
                                {"transport", gpu ? "nccl" : planning.communicator->transport()},
                                {"device", to_string(plan.device)},
                                {"threads", threads()},
                                {"planned_peak_bytes", result.peak.count},
                                {"measured_peak_bytes", result.measured.count},
                                {"held_bytes", trainee.resident().count}};
  // Ranks that are threads share these figures, which are in the run's own fields.
  if (!in_one_process(planning)) {
    fields["fixed_bytes"] = result.fixed.count;
    fields["process_peak_bytes"] = process_peak().count;
    fields["step_processor_ms"] = result.loop.processor_ms;
  }
  fields["step_ms"] = result.loop.step_ms;
  if (!gpu) fields["waited_ms"] = clock.waited_ms;
  fields["bytes_sent"] = clock.sent + (gpu ? link_traffic(plan, {}).sent.count : 0);
  return fields;
}

// The metrics of the test data. A test loss that is not finite ends the run as a training loss
// does.
std::vector<double> evaluated(RunResult& result, const Trainee& trainee,
                              const PlanningOptions& planning, const Outputs& outputs) {
  std::vector<double> metrics = result.evaluation->run();
  if (std::isfinite(metrics[0])) return metrics;
  const std::string told =
      fmt::format("step {}: the test loss is {}", trainee.step(), text_of_non_finite(metrics[0]));
  if (planning.on_nan == "ignore") {
    outputs.say("ebb: warning: " + told);
    return metrics;
  }
  const std::string weight = weight_of_any_rank(planning, trainee.non_finite_weight().value_or(""));
  throw NotFinite(fmt::format("{}, {}; {}", told,
                              weight.empty() ? "although all weights are finite"
                                             : fmt::format("because {} is not finite", weight),
                              trainee.on_nan_hint()));
}

// Evaluation during the run, continuing from the saved run's state.
Judging judging_of(const TrainCommand& command, const std::optional<SavedRun>& saved,
                   std::function<std::vector<double>()> evaluate) {
  Judging judging;
  judging.stopping = EarlyStopping(command.patience);
  if (!command.eval_every) return judging;
  judging.every = *command.eval_every, judging.keeps_best = command.keep_best;
  judging.evaluate = std::move(evaluate);
  if (!saved) return judging;
  const auto note = saved->notes.find("evaluations");
  if (note == saved->notes.end()) return judging;
  try {
    judging.stopping.restore(note->second);
  } catch (const ValueError& error) {
    throw FileError(fmt::format("{}: {}", saved->file.string(), error.what()));
  }
  return judging;
}

// The signal that asked any rank to stop before the last checkpoint was written; with --save,
// requests wait for the model too.
int asked_before_the_end(const Trainee& trainee, const TrainCommand& command, Outputs& outputs,
                         std::optional<Interrupt>& until_kept) {
  if (!until_kept || command.save) return 0;
  const int signal = any_signal(exchange_pulses(command.planning, {until_kept->signal()}));
  until_kept.reset();
  if (signal != 0) tell_interruption(outputs, trainee.step(), command.steps);
  return signal;
}

int run_to_end(const TrainCommand& command, const std::optional<SavedRun>& saved, Output output,
               const std::function<std::unique_ptr<Trainee>()>& make) {
  const PlanningOptions& planning = command.planning;
  const Device device = device_of(planning);
  std::optional<PinnedThreads> pinned;
  if (planning.machine.pin_threads) keep_to_own_cores(planning), pinned.emplace();
  const MemoryMeter meter(device);
  std::unique_ptr<Trainee> made;
  {
    const Waiting waiting("planning");
    made = make();
  }
  give_back_freed_memory();  // memory of planning, which would count against the process's budget
  Trainee& trainee = *made;
  io::Notes notes = resumed(trainee, command, saved);
  if (saved) {
    const EarlyStopping stopping = judging_of(command, saved, {}).stopping;
    if (saved->step >= command.steps || (command.resume == "auto" && stopping.stops()))
      return end_complete_run(command, trainee, stopping, output);
  }

  RunResult result;
  result.peak = trainee.memory().peak();
  if (command.eval_batches > 0) {
    result.evaluation.emplace(trainee.evaluation(command.eval_batches));
    result.peak = std::max(result.peak, result.evaluation->peak());
  }
  trainee.on_reshape({.before =
                          [&] {
                            measure(result, trainee, meter, device, planning);
                            result.evaluation.reset();
                          },
                      .after =
                          [&] {
                            if (command.eval_batches > 0)
                              result.evaluation.emplace(trainee.evaluation(command.eval_batches));
                          }});
  require_memory(result.peak, device, command.overcommit);
  trainee.load();
  Outputs outputs(command);
  require_unchanged(command, saved);
  outputs.begin_log(trainee.step());
  tell_initialised(command, trainee, outputs);
  for (const std::string& late : late_options(command)) outputs.say("ebb: " + late);
  std::optional<std::pair<std::int64_t, std::filesystem::path>> written;  // step and file
  outputs.keep_by(
      [&](const std::filesystem::path& file, const io::Notes& own) {
        if (written && written->first == trainee.step() && planning.communicator) {
          // A second copy, for a file system without links; the other ranks have already sent their
          // parts. It is the same step: if the copy fails, that step is kept all the same, as the
          // other ranks assume.
          std::error_code error;
          std::filesystem::copy_file(written->second, file,
                                     std::filesystem::copy_options::overwrite_existing, error);
          if (error)
            outputs.note("a checkpoint", fmt::format("{}: {}", file.string(), error.message()));
          return;
        }
        require_finite_weights(trainee, planning);  // all ranks take part, once for each step
        save_on_all(trainee, planning, file, own);
        written = {trainee.step(), file};
      },
      std::move(notes), {trainee.checkpoint_bytes(), trainee.saved_bytes()}, trainee.step());

  if (command.checkpoint && leads(planning) && !trainee.tokenizer_json().empty())
    write_file(*command.checkpoint / "tokenizer.json", trainee.tokenizer_json());

  const auto evaluate = [&] { return evaluated(result, trainee, planning, outputs); };
  Judging judging = judging_of(command, saved, evaluate);
  judging.peak = result.peak;
  if (command.eval_every) outputs.add_note("evaluations", judging.stopping.note());
  const RankClock clock(planning);
  // A request to stop that comes after the last step must not lose the checkpoint or the model.
  std::optional<Interrupt> until_kept;
  if (command.save || command.checkpoint) until_kept.emplace();
  result.loop = run_loop(trainee, command, outputs, judging);
  if (result.loop.signal == 0)
    result.loop.signal = asked_before_the_end(trainee, command, outputs, until_kept);
  if (result.loop.signal != 0) {
    if (command.log && leads(planning)) write_summary_page(*command.log, outputs);
    return 128 + result.loop.signal;
  }
  const RankClock::Read waited = clock.read(result.loop.losses.size());
  result.steps = trainee.step(), result.stopping = judging.stopping;
  const bool together = weights_are_ranges(planning);
  std::string refused;  // why the leading rank refuses the test loss
  if (result.evaluation && (leads(planning) || together)) {
    const std::vector<Judged>& judged = result.loop.judged;
    const bool done = !judged.empty() && judged.back().step == trainee.step();
    try {
      result.metrics = done ? judged.back().metrics : evaluate();
    } catch (const RankError&) {
      throw;
    } catch (const NotFinite& error) {
      if (command.save && !together && !trainee.non_finite_weight())
        save_model(trainee, command, outputs);
      tell_not_finite(outputs);
      if (together || !planning.communicator) throw;
      refused = error.what();
    } catch (const Error&) {  // an error in the test data must not affect the model
      if (command.save && !together) save_model(trainee, command, outputs);
      throw;
    }
  }
  if (planning.communicator && !together && result.evaluation)
    refused = planning.communicator->broadcast(refused, 0, "the end of the evaluation");
  if (!refused.empty()) {
    if (!leads(planning)) return failure;  // the leading rank reports it
    throw NotFinite(refused);
  }
  measure(result, trainee, meter, device, planning);
  result.machine = trainee.arena().report();
  if (pinned) result.machine.pinned_threads = pinned->grant();
  if (planning.communicator)
    result.per_rank =
        json_text(gather_fields(planning, rank_fields(result, waited, planning, trainee)));
  if (command.save && command.keep_best)
    result.saved_step = return_to_best(command, trainee, judging.stopping, outputs);
  if (command.save && saves(planning)) {
    save_model(trainee, command, outputs);
    until_kept.reset();
  }
  result.kept = kept_budget(planning, trainee.memory().budget, result.measured);
  if (!leads(planning)) return outputs.close() ? result.kept.report() : failure;
  const nlohmann::ordered_json fields = run_fields(command, trainee, result);
  if (command.log) write_summary(*command.log, fields, workloads::to_json(trainee.spec()), outputs);
  if (output == Output::json)
    std::cout << json_text(fields) << "\n";
  else
    print_run(command, trainee, result);
  return outputs.close() ? result.kept.report() : failure;
}

}  // namespace

int train_run(const TrainCommand& command, const std::optional<SavedRun>& saved, Output output,
              const std::function<std::unique_ptr<Trainee>()>& make) {
  try {
    return run_to_end(command, saved, output, make);
  } catch (const NotFinite& error) {
    if (!command.planning.whole_process) throw;
    const Kept kept = kept_budget(command.planning, {}, {});
    if (!kept.exceeded()) throw;
    throw NotFinite(fmt::format("{}; {}", error.what(), kept.text()));
  }
}

}  // namespace ebb::cli
