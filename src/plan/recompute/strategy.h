// Ways to choose what is computed again. All answer the same question, so that they can be compared
// on the same step.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "ebb/plan.h"
#include "plan/recompute/simulation.h"

namespace ebb {

struct Question {
  const Plan& plan;  // keeps all
  const StepModel& model;
  std::int64_t limit;  // bytes the arena may take; strategies set by hand do not look at it
  Effort effort = Effort::thorough;
};

class Strategy {
 public:
  virtual ~Strategy() = default;
  virtual std::string_view name() const = 0;
  // Whoever finds nothing that keeps the limit gives something that does not.
  virtual Runs decide(const Question& question) const = 0;
};

std::unique_ptr<const Strategy> make_strategy(const Recompute& recompute);

// What the strategies set by hand say: places from which a search may start.
std::vector<Runs> hand_made(const Question& question);

// Which of its positions is the value's last in forward, where backward reads it too and it can be
// computed again; or -1.
int last_in_forward(const StepModel& model, int value);

// Frees these values after forward. They are computed again when backward first needs them, with
// whatever has died by then of what they are made from, and stay from then on.
// With `held`, the values lie in regions that are computed again from those: they are kept for it,
// and what of a region has been computed again stays for the rest of it.
Runs freed_after_forward(const StepModel& model, const std::vector<int>& values,
                         const std::optional<std::vector<int>>& held = {});

}  // namespace ebb
