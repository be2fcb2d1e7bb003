#include "cli/late_options.h"

#include <fmt/core.h>

#include <optional>

namespace ebb::cli {

std::vector<std::string> late_options(const workloads::TrainSpec& spec) {
  std::vector<std::string> late;
  const auto say = [&](const std::string& option, const auto& value, const std::string& before) {
    late.push_back(
        fmt::format("{} {}: the run ends after {} steps, {}", option, value, spec.steps, before));
    return true;
  };
  const auto add = [&](const std::string& option, std::optional<std::int64_t> step,
                       const char* before) {
    return step && *step > spec.steps && say(option, *step, fmt::format("before {}", before));
  };
  if (!add("--warmup", spec.warmup, "the learning rate reaches its value") &&
      spec.warmup == spec.steps && spec.schedule != "constant")
    say("--schedule", spec.schedule, "all of them the warm-up before it");
  // The first evaluation is always the best so far.
  if (!add("--eval-every", spec.eval_every,
           "the first of these evaluations; it is evaluated at its end") &&
      spec.patience && spec.eval_every && spec.steps / *spec.eval_every <= *spec.patience)
    say("--patience", *spec.patience, "before as many evaluations follow the first one");
  if (!add("--checkpoint-every", spec.checkpoint_every,
           "the first of these checkpoints; one is written at its end") &&
      spec.keep > 1 && !spec.checkpoint_every)
    say("--keep", spec.keep, "with one checkpoint; --checkpoint-every N adds others");
  const workloads::SparsityOptions& sparsity = spec.planning.sparsity;
  (void)(add("--sparsity-from", sparsity.from, "any weight becomes zero") ||
         add("--sparsity-until", sparsity.until, "the requested share of weights is zero"));
  const workloads::PruneOptions& prune = spec.planning.prune;
  (void)(add("--prune-from", prune.from, "any part is removed") ||
         add("--prune-until", prune.until, "the requested share is removed"));
  for (const auto& [name, level] : spec.task.levels)
    add(fmt::format("--{}.warmup", name), level.warmup, "the levels above begin");
  return late;
}

}  // namespace ebb::cli
