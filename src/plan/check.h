// Checks that a plan is safe to run and computes what it says. Shares no code with the planner,
// since plans may also come from files.
#pragma once

#include <optional>
#include <string>

#include "ebb/plan.h"

namespace ebb {

// Throws a ValueError for the first of these conditions that does not hold:
// - operands have the types that the op infers and lie within their buffers; buffers lie within
//   their space, leaf or output; spaces are no larger than their buffers need;
// - kernels accept the layouts of their inputs and have the workspace they need on this machine;
// - no two buffers overlap while both are live; an output shares an input's buffer only if the op
//   allows it;
// - every instruction reads the values it names: they have not been overwritten;
// - instructions of different lanes that access the same bytes are ordered if one of them writes;
// - when the step ends, outputs hold their values.
// The caller must have checked that all ids are within their tables.
void check_plan(const Plan& plan);

// Names the first output or variable that the plan computes differently from `graph` (after its
// passes): each must be the same function of inputs, constants and variables. Nothing if equal.
std::optional<std::string> differs(const Plan& plan, const Graph& graph);

}  // namespace ebb
