#include "cli/run_report.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "cli/process_memory.h"
#include "core/json.h"
#include "ebb/threads.h"

namespace ebb::cli {
namespace {

// Nine significant digits tell any two float32 losses apart.
double nine_digits(double value) { return std::stod(fmt::format("{:.9g}", value)); }

// The accuracy of each class, from MultilevelWorkload::judge_by_class after the first two metrics;
// nothing for a class without items.
std::vector<std::optional<double>> by_class(const std::vector<double>& metrics) {
  std::vector<std::optional<double>> classes;
  for (std::size_t i = 2; i + 1 < metrics.size(); i += 2) {
    classes.emplace_back();
    if (metrics[i] > 0.0) classes.back() = metrics[i + 1] / metrics[i];
  }
  return classes;
}

// The tested part, with --eval-batches or whole batches, if that is not everything.
std::string tested_part(const RunResult& result) {
  if (!result.evaluation || result.evaluation->items() == result.evaluation->of_items()) return {};
  return fmt::format(", over the first {} of {} items", result.evaluation->items(),
                     result.evaluation->of_items());
}

bool is_of_loss(const workloads::Limit& limit) {
  return limit.kind == workloads::Limit::Kind::loss;
}

}  // namespace

void print_run(const TrainCommand& command, const Trainee& trainee, const RunResult& result) {
  const Trainee::Facts facts = trainee.facts();
  const std::vector<double>&losses = result.loop.losses, &metrics = result.metrics;
  fmt::print("{}: {} parameters, batch {}, {} {} of {:.1f} ms\n", command.workload().name,
             facts.parameters, facts.batch, losses.size(), trainee.counted(), result.loop.step_ms);
  fmt::print("{}", trainee.data_text());
  fmt::print("loss {:.6g} at first, {:.6g} at last\n", losses.front(), losses.back());
  fmt::print("{}", trainee.steps_text());
  if (result.loop.stopped_early)
    fmt::print("stopped after step {} of {}: {} evaluations in a row without a lower test loss\n",
               result.steps, command.steps, result.stopping.waited());
  if (const auto best = result.stopping.best_step())
    fmt::print("lowest test loss {:.6g}, after step {}{}\n", result.stopping.best_loss(), *best,
               command.keep_best ? fmt::format("; best.safetensors in {} has its weights",
                                               command.checkpoint->string())
                                 : "");
  if (!metrics.empty())
    fmt::print("test loss {}{}{}\n",
               std::isfinite(metrics[0]) ? fmt::format("{:.6g}", metrics[0])
                                         : text_of_non_finite(metrics[0]),
               metrics.size() > 1 ? fmt::format(", accuracy {:.2f}%", 100.0 * metrics[1]) : "",
               tested_part(result));
  if (const auto classes = by_class(metrics); !classes.empty()) {
    std::string text;
    for (std::size_t c = 0; c < classes.size(); ++c)
      text += classes[c] ? fmt::format("  {}: {:.1f}%", c, 100.0 * *classes[c])
                         : fmt::format("  {}: not tested", c);
    // In sets that ebb makes long-tailed, the rarest class is the last one.
    fmt::print("accuracy by class, {}:{}\n",
               trainee.spec().task.imbalance ? "the most frequent in training first"
                                             : "in the order of their names",
               text);
  }
  if (result.saved_step)
    fmt::print("{} has the weights after step {}{}\n", command.save->string(), *result.saved_step,
               *result.saved_step == result.steps ? "" : ", of the lowest test loss");
  if (facts.limit)
    fmt::print("best possible {} {:.6g}\n", is_of_loss(*facts.limit) ? "loss" : "accuracy",
               facts.limit->value);
  fmt::print("peak {} as planned, {} resident, {} of the process beside it; planned in {:.1f} ms\n",
             to_string(result.peak), to_string(result.measured), to_string(result.fixed),
             trainee.memory().plan.made_in_ms);
  fmt::print("{}", trainee.plan_text());
  if (!result.per_rank.empty())
    for (const auto& rank : parse_ordered_json(result.per_rank))
      fmt::print(
          "rank {}: {} resident, {:.1f} ms a step in the median{}\n", rank["rank"].get<int>(),
          to_string(Bytes{rank["measured_peak_bytes"].get<std::int64_t>()}),
          rank["step_ms"].get<double>(),
          rank.contains("waited_ms")  // on a GPU, step times include exchanges
              ? fmt::format(", {:.1f} ms in exchanges on average", rank["waited_ms"].get<double>())
              : "");
  const MachineOptions& asked = command.planning.machine;
  if (asked.huge_pages || asked.lock_memory || asked.pin_threads)
    fmt::print("{}", to_string(result.machine));
}

nlohmann::ordered_json run_fields(const TrainCommand& command, const Trainee& trainee,
                                  const RunResult& result) {
  const Trainee::Facts facts = trainee.facts();
  const std::vector<double>& metrics = result.metrics;
  std::vector<double> losses;
  for (const double loss : result.loop.losses) losses.push_back(nine_digits(loss));
  nlohmann::ordered_json fields{{"workload", command.workload().name},
                                {"device", command.planning.device},
                                {"threads", threads()},
                                {"params", facts.parameters},
                                {"batch", facts.batch},
                                {"data", data_fields(facts.data)},
                                {"steps", result.steps},
                                {"losses", losses},
                                {"step_ms", result.loop.step_ms},
                                {"step_processor_ms", result.loop.processor_ms},
                                {"measured_peak_bytes", result.measured.count},
                                {"fixed_bytes", result.fixed.count},
                                {"process_peak_bytes", process_peak().count}};
  fields.update(trainee.fields());
  if (!facts.initialised.empty()) fields["initialised"] = facts.initialised;
  fields["planned_peak_bytes"] = result.peak.count;
  if (result.evaluation) {
    fields["eval_items"] = result.evaluation->items();
    fields["eval_batch"] = result.evaluation->part();
  }
  if (!metrics.empty()) fields["eval_loss"] = nine_digits(metrics[0]);
  if (metrics.size() > 1) fields["eval_accuracy"] = metrics[1];
  if (const auto classes = by_class(metrics); !classes.empty()) {
    fields["eval_accuracy_by_class"] = nlohmann::ordered_json::array();
    for (const auto& share : classes)
      fields["eval_accuracy_by_class"].push_back(share ? nlohmann::ordered_json(*share) : nullptr);
  }
  if (command.eval_every) {
    fields["evaluations"] = nlohmann::ordered_json::array();
    for (const Judged& judged : result.loop.judged) {
      nlohmann::ordered_json one{{"step", judged.step}, {"loss", nine_digits(judged.metrics[0])}};
      if (judged.metrics.size() > 1) one["accuracy"] = judged.metrics[1];
      fields["evaluations"].push_back(std::move(one));
    }
    fields["stopped_early"] = result.loop.stopped_early;
    if (const auto best = result.stopping.best_step())
      fields["best_step"] = *best, fields["best_eval_loss"] = result.stopping.best_loss();
  }
  if (result.saved_step) fields["saved_step"] = *result.saved_step;
  if (command.checkpoint) fields["checkpoint"] = command.checkpoint->string();
  if (result.kept.budget) fields["budget_bytes"] = result.kept.budget->count;
  if (facts.limit)
    fields[is_of_loss(*facts.limit) ? "best_loss" : "best_accuracy"] = facts.limit->value;
  if (result.kept.budget) fields["budget_exceeded"] = result.kept.exceeded();
  if (!result.per_rank.empty()) {
    fields["ranks"] = command.planning.ranks;
    fields["per_rank"] = parse_ordered_json(result.per_rank);
  }
  return fields;
}

}  // namespace ebb::cli
