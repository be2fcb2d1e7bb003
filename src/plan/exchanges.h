// Exchanges between ranks within a step: the time they take on the link, and the part of it that
// the computation waits for.
#pragma once

#include <vector>

#include "ebb/plan.h"
#include "ebb/rates.h"
#include "ops/collective/collective.h"

namespace ebb::planning {

// One collective that sends or receives something.
struct Exchange {
  InstructionId instruction;
  LinkUse use;
  double link_ms = 0.0;
  // The part of that time that no computation hides, and the instruction that waits longest for the
  // exchange. No waiter: nothing in this step reads the result, only the next step does.
  double exposed_ms = 0.0;
  InstructionId waiter;
};

// The exchanges of a plan whose lanes are ordered, in the order of its instructions. All later
// instructions wait for an exchange in the lane `compute`; its waiter is the first that reads its
// result. An exchange in another lane occupies the link and not the device: it is exposed only
// while the lane `compute` is idle. The sum of all exposed times is what the step would save if the
// link took no time.
std::vector<Exchange> exchanges_of(const Plan& plan, const Rates& rates);

// Subtracts the time of exchanges that computation hides from the predicted time of the step.
void hide_exchanges(Plan& plan, const Rates& rates);

}  // namespace ebb::planning
