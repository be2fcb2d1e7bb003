// The least time in which a small step can be run within a limit of bytes: a referee for the
// planner's search, which has to find it without looking at everything.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/recompute/simulation.h"

namespace ebb::test {

using planning::Runs;
using planning::StepModel;

// What is allowed: steps that write outside the arena, wait to be copied out or cannot run again
// are anchors. Every anchor that matters runs once in its place among the other anchors. All else,
// and anchors that can run again, runs as often as one likes at any moment after the anchors before
// it and before the one that makes it invalid. Whatever is read was made by an earlier run.

// The least bytes with which these runs can be done: a copy lies in memory from the run that makes
// it to the last that reads it, and outputs lie over inputs that die where the step allows it.
// Nothing when the runs are not allowed.
std::optional<std::int64_t> peak_of(const StepModel& model, std::span<const int> runs);
double ms_of(const StepModel& model, std::span<const int> runs);

// The quickest allowed runs with a peak of at most `limit`, or nothing. For models of at most 64
// values; time grows exponentially with the number of steps, from about 20 on too fast.
std::optional<Runs> exact_recompute(const StepModel& model, std::int64_t limit);

// The least peak of any allowed runs.
std::int64_t exact_least_peak(const StepModel& model);

// Whether a step is an anchor, for tests that go through runs by themselves.
std::vector<char> find_anchors(const StepModel& model);

}  // namespace ebb::test
