// Whether a plan is safe to run and computes what it says. It shares no code with the planner:
// plans come from files too.
#pragma once

#include <optional>
#include <string>

#include "ebb/plan.h"

namespace ebb {

// Throws ValueError for the first thing that is wrong:
// - operands have the types that the op gives, lie within their buffers, and buffers within their
//   space, leaf or output, which are no larger than they have to be;
// - kernels take operands as they lie, and have the workspace that they need on this machine;
// - no two buffers that are live at once overlap; outputs lie over inputs only where the op allows
//   it;
// - every instruction reads the values it names: nothing has been written over them;
// - instructions of different lanes that touch the same bytes are ordered;
// - at the end, outputs hold their values.
// All numbers of rows must lie in their tables.
void check_plan(const Plan& plan);

// Whether the plan computes something else than `graph`, as passes have left it, and what: outputs
// and new values of variables must be the same functions of inputs, constants and variables.
std::optional<std::string> differs(const Plan& plan, const Graph& graph);

}  // namespace ebb
