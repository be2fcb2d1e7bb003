// Ways to choose what is computed again. All answer the same question, so that they can be compared
// on the same step.
#pragma once

#include <memory>
#include <string_view>

#include "ebb/plan.h"
#include "plan/recompute/simulation.h"

namespace ebb {

struct Question {
  const Plan& plan;  // keeps all
  const StepModel& model;
  std::int64_t limit;  // bytes the arena may take; strategies set by hand do not look at it
};

class Strategy {
 public:
  virtual ~Strategy() = default;
  virtual std::string_view name() const = 0;
  virtual Holds decide(const Question& question) const = 0;
};

std::unique_ptr<const Strategy> make_strategy(const Recompute& recompute);

// What the strategies set by hand say: places from which a search may start.
std::vector<Holds> hand_made(const Question& question);

// The gap of a value from its last reader in forward to its first in backward, or -1.
int gap_to_backward(const StepModel& model, int value);

// Frees these values after forward, and keeps them once they are computed again.
Holds freed_after_forward(const StepModel& model, const std::vector<int>& values);

}  // namespace ebb
