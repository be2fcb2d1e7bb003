// The time of a step whose copies share memory with the computation, before its layout is known.
#pragma once

#include <span>

#include "plan/lower.h"

namespace ebb::planning {

// The milliseconds of a step whose instructions run in this order. Copies have a lane for each
// direction. An instruction starts when its lane is free, its inputs are made, and at most `limit`
// bytes of the arena are in use: it waits for the end of whatever used the memory before. That
// memory has no gaps, so a plan is laid out for about this time or a little more; finding it takes
// much longer.
double pooled_ms(const Plan& plan, std::span<const InstructionId> order, Bytes limit);

}  // namespace ebb::planning
