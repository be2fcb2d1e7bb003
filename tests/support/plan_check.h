// Checks a plan independently of the planner: follows what each instruction reads through the bytes
// of the arena, one write at a time.
#pragma once

#include "ebb/plan.h"

namespace ebb::test {

// Failures are GoogleTest failures. Checks that operands lie inside their buffers, that lifetimes
// cover all uses, that buffers live at once do not overlap, that every instruction reads the values
// its node names, that writing in place is allowed by the op, and that the totals are right.
void check_plan(const Plan& plan);
// For a plan without its graph: checks only that buffers live at once do not overlap, and the
// totals.
void check_layout(const Plan& plan);

}  // namespace ebb::test
