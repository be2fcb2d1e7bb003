#include "cli/recompute_rules.h"

#include <fmt/core.h>

#include "cli/verb.h"

namespace ebb::cli {

void check_recompute(const std::string& option, const Recompute& recompute, bool budget) {
  using Mode = Recompute::Mode;
  if (!budget && (recompute.mode == Mode::automatic || recompute.mode == Mode::greedy))
    throw UsageError(fmt::format(
        "{} {} frees as much as a budget requires, but there is no budget: add --budget SIZE",
        option, to_string(recompute)));
  if (budget && recompute.mode == Mode::marked)
    throw UsageError(
        fmt::format("{} marked is for steps without a budget: leave it out, and the planner "
                    "recomputes what the budget requires",
                    option));
}

void require_effect(const std::string& option, const Recompute& recompute, const std::string& model,
                    std::span<const Plan* const> plans) {
  using Mode = Recompute::Mode;
  const Mode mode = recompute.mode;
  if (mode == Mode::none || mode == Mode::automatic || mode == Mode::greedy) return;
  bool blocks = false, marks = false;
  for (const Plan* plan : plans) {
    if (plan->recomputed_nodes() > 0) return;
    for (const Instruction& instruction : plan->instructions) {
      blocks |= instruction.marks.block != 0;
      marks |= instruction.marks.checkpoint != 0;
    }
  }
  throw UsageError(fmt::format(
      "{} {} frees nothing: {}; leave it out, or use --budget SIZE, with which the planner chooses "
      "what to recompute",
      option, to_string(recompute),
      mode == Mode::blocks && !blocks  ? model + " has no blocks"
      : mode == Mode::marked && !marks ? "the code of " + model + " marks nothing"
                                       : "it finds no activation in " + model + " to recompute"));
}

void require_recomputation(const workloads::PlanningOptions& planning, const std::string& workload,
                           const Plan& plan) {
  const Plan* const plans[] = {&plan};
  if (planning.recompute)
    require_effect("--recompute", Recompute::parse(*planning.recompute), workload, plans);
}

}  // namespace ebb::cli
