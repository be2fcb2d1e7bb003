// Strategies that choose what to recompute. All answer the same question, so that they can be
// compared on the same training step.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "ebb/plan.h"
#include "plan/recompute/simulation.h"

namespace ebb::planning {

struct Question {
  const Plan& plan;  // without recomputation
  const StepModel& model;
  std::int64_t limit;  // of live bytes in the arena; strategies with a fixed rule ignore it
  Effort effort = Effort::thorough;
};

class Strategy {
 public:
  virtual ~Strategy() = default;
  virtual std::string_view name() const = 0;
  // The runs that the strategy chooses. If it finds none within the limit, the result exceeds it.
  virtual Runs decide(const Question& question) const = 0;
};

std::unique_ptr<const Strategy> make_strategy(const Recompute& recompute);

// The results of some strategies with a fixed rule, from which a search may start.
std::vector<Runs> hand_made(const Question& question);

// The index in `positions` of the value's last use in forward before backward reads it, if it can
// be recomputed; -1 otherwise.
int last_in_forward(const StepModel& model, int value);

// Frees these values after their last use in forward. When backward first needs one, it is
// recomputed, with those of its inputs that are no longer live, and kept until its last reader.
// With `held`, the values are in regions that are recomputed from the values `held`. Those stay
// available for that, and so does everything that has been recomputed in a region.
Runs freed_after_forward(const StepModel& model, const std::vector<int>& values,
                         const std::optional<std::vector<int>>& held = {});

}  // namespace ebb::planning
