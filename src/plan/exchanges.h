// Exchanges between ranks within the time of a step: what they take on the link, and how much of
// that the computation waits for.
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
  // Of that time, what no computation hides; and the instruction that waits longest for it. None:
  // nothing in this step reads its result, which the next one waits for.
  double exposed_ms = 0.0;
  InstructionId waiter;
};

// Of a plan whose lanes are ordered, in the order of its instructions. An exchange in the lane of
// the computation is waited for by all that comes after it; the first instruction that reads its
// result is named. One in another lane takes the link and not the device, so that it is waited for
// only while the lane of the computation is idle. In all, exposed times are the time that the step
// would be shorter by if the link took none.
std::vector<Exchange> exchanges_of(const Plan& plan, const Rates& rates);

// Takes the time of exchanges that computation hides out of the predicted time of the step.
void hide_exchanges(Plan& plan, const Rates& rates);

}  // namespace ebb::planning
