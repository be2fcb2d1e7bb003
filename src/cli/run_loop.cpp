#include "cli/run_loop.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "cli/interrupt.h"
#include "cli/measure.h"
#include "cli/ranks.h"
#include "cli/verb.h"
#include "ebb/communicator.h"
#include "ebb/report/progress.h"

namespace ebb::cli {
namespace {

// The first steps touch memory for the first time and are left out.
double usual(const std::vector<double>& times) {
  const std::size_t warm = std::min<std::size_t>(times.size() - 1, 3);
  return median({times.begin() + static_cast<std::ptrdiff_t>(warm), times.end()});
}

// Evaluates the state after a step, and keeps it if it is the best.
void judge(Judging& judging, Trainee& trainee, Outputs& outputs, report::Progress& progress,
           LoopResult& result) {
  const std::int64_t step = trainee.step();
  std::vector<double> metrics = judging.evaluate();
  outputs.log("test_loss", step, metrics.at(0));
  if (metrics.size() > 1) outputs.log("test_accuracy", step, metrics[1]);
  progress.set_test_loss(metrics[0]);
  const bool best = judging.stopping.add(step, metrics[0]);
  outputs.add_note("evaluations", judging.stopping.note());
  if (best && judging.keeps_best) outputs.keep_best(step, metrics[0]);
  result.judged.push_back({step, std::move(metrics)});
  result.stopped_early = judging.stopping.stops();
}

// Also evaluates the last state if --eval-every does not cover it, because it may be the best.
// Otherwise it does not count towards the patience, so that a resumed run counts only regular
// evaluations.
void judge_last(Judging& judging, Trainee& trainee, Outputs& outputs, report::Progress& progress,
                LoopResult& result) {
  const EarlyStopping before = judging.stopping;
  judge(judging, trainee, outputs, progress, result);
  if (judging.stopping.best_step() == trainee.step()) return;
  judging.stopping = before;
  outputs.add_note("evaluations", judging.stopping.note());
}

}  // namespace

double Stopwatch::ms() const {
  const auto now = std::chrono::steady_clock::now();
  return std::chrono::duration<double, std::milli>(now - begin_).count();
}

double Stopwatch::processor_ms() const {
  return 1e3 * static_cast<double>(std::clock() - processor_begin_) / CLOCKS_PER_SEC;
}

LoopResult run_loop(Trainee& trainee, const TrainCommand& command, Outputs& outputs,
                    Judging& judging) {
  const std::int64_t steps = command.steps;
  constexpr int standard_error = 2, nowhere = -1;
  report::Progress progress(steps,
                            {.label = command.workload().name,
                             .descriptor = leads(command.planning) ? standard_error : nowhere});
  LoopResult result;
  std::vector<double> times, processor_times;
  double ms = 0.0, processor_ms = 0.0;  // since the last update
  const Interrupt interrupt;
  int asked = 0;  // the signal that some rank received
  const std::shared_ptr<Communicator>& ranks = command.planning.communicator;
  Pulse pulse;
  const auto ask = [&](std::int64_t step) {
    pulse.signal = interrupt.signal();
    const std::vector<Pulse> all = exchange_pulses(command.planning, pulse);
    if (step > 0) log_pulses(all, step, outputs);
    return trainee.step() < steps && !result.stopped_early ? any_signal(all) : 0;
  };
  try {
    asked = ask(0);
    while (asked == 0 && trainee.step() < steps && !result.stopped_early) {
      const double waited_before = ranks ? ranks->waited_ms() : 0.0;
      const StepTaken taken = trainee.advance(outputs);
      pulse.step_ms = taken.ms;
      pulse.waited_ms = ranks ? ranks->waited_ms() - waited_before : 0.0;
      ms += taken.ms, processor_ms += taken.processor_ms;
      if (taken.loss) {
        times.push_back(std::exchange(ms, 0.0));
        processor_times.push_back(std::exchange(processor_ms, 0.0));
        result.losses.push_back(*taken.loss);
        outputs.log("step_ms", trainee.step(), times.back());
        if (taken.rate) progress.set_rate(*taken.rate);
        progress.update(trainee.step(), *taken.loss, judging.peak);
      }
      if (judging.every > 0 && trainee.step() % judging.every == 0)
        judge(judging, trainee, outputs, progress, result);
      outputs.after_step(trainee.step(), result.losses.empty() ? 0.0 : result.losses.back());
      asked = ask(trainee.step());
    }
    if (asked == 0) outputs.end("is complete");
    const bool done = asked == 0 && !result.losses.empty();
    if (done && judging.keeps_best && trainee.step() % judging.every != 0) {
      judge_last(judging, trainee, outputs, progress, result);
      result.stopped_early = false;
    }
    if (done) outputs.keep(trainee.step());
    if (asked != 0) {
      progress.finish();
      tell_interruption(outputs, trainee.step(), steps);
    }
  } catch (const RankError&) {  // nothing can be gathered any more
    progress.finish();
    tell_lost_rank(outputs, trainee.step());
    throw;
  } catch (const NotFinite&) {
    progress.finish();
    tell_not_finite(outputs);
    throw;
  } catch (...) {
    progress.finish();
    keep_last_whole_step(outputs, trainee.step(), trainee.intact());
    throw;
  }
  progress.finish();
  if (asked != 0) {
    result.signal = asked;
    return result;
  }
  if (result.losses.empty())
    throw UsageError(
        fmt::format("--steps {} ends before the first update: use a larger number", steps));
  result.step_times = times;
  result.step_ms = usual(times), result.processor_ms = usual(processor_times);
  return result;
}

}  // namespace ebb::cli
