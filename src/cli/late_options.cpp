#include "cli/late_options.h"

#include <fmt/core.h>

#include <optional>

namespace ebb::cli {

std::vector<std::string> late_options(const workloads::TrainSpec& spec) {
  std::vector<std::string> late;
  const auto add = [&](const std::string& option, std::optional<std::int64_t> step,
                       const char* before) {
    if (!step || *step <= spec.steps) return false;
    late.push_back(fmt::format("{} {}: the run ends after {} steps, before {}", option, *step,
                               spec.steps, before));
    return true;
  };
  add("--warmup", spec.warmup, "the learning rate reaches its value");
  add("--eval-every", spec.eval_every,
      "the first of these evaluations; it is evaluated at its end");
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
