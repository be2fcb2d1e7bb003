// What could be outside the device, in the order in which it is worth it.
#pragma once

#include <optional>
#include <vector>

#include "plan/offload/placement.h"
#include "plan/planner.h"

namespace ebb::planning {

// A variable, or a result of forward that backward reads much later.
struct Candidate {
  enum class Kind : std::uint8_t { state, weights, activation } kind = Kind::state;
  Bytes bytes = {};
  const Node* variable = nullptr;
  std::vector<const Node*> late_readers =
      {};  // of a variable: those that read it after a long time
  Tensor activation = {};
  const Node* until = nullptr;  // the reader that an activation is fetched for
};

// The tier of a variable, if it is decided already.
std::optional<Tier> home_of(const Node& node, const OffloadOptions& options);

// - State and weights so that any first part of them is updated all over the step: their copies are
//   then spread evenly over it.
// - Results that take long to recompute for their size first.
std::vector<Candidate> candidates(const Planner& planner);

// Places candidates, in their order, in the fastest tiers whose budgets have room, until `bytes`
// are outside the device. Variables whose tier is decided are there in any case.
Placement place(const std::vector<Candidate>& candidates, Bytes bytes, const Planner& planner);

}  // namespace ebb::planning
