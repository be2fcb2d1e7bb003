// The least time in which a small step can be run within a limit of bytes, found by exhaustive
// search: a reference for the planner's search, which looks at only a part of the possibilities.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/recompute/simulation.h"

namespace ebb::test {

using planning::Runs;
using planning::StepModel;

// The rules: steps that write outside the arena, wait to be copied out or cannot run again are
// anchors. Every anchor that is needed runs once, in its place among the other anchors. All other
// steps, and anchors that can run again, may run any number of times, after the anchors before them
// and before the anchor that makes them invalid. A value must be made before it is read.

// The least bytes with which these runs can be done. A copy is in memory from the run that makes it
// to the last run that reads it; outputs overwrite inputs that die if the step allows it. Nothing
// if the runs break the rules.
std::optional<std::int64_t> peak_of(const StepModel& model, std::span<const int> runs);
double ms_of(const StepModel& model, std::span<const int> runs);

// The fastest allowed runs with a peak of at most `limit`, or nothing. For models of at most 64
// values; the time grows exponentially with the number of steps, and is too long from about 20
// steps on.
std::optional<Runs> exact_recompute(const StepModel& model, std::int64_t limit);

// The least peak of any allowed runs.
std::int64_t exact_least_peak(const StepModel& model);

// Whether each step is an anchor, for tests that go through runs themselves.
std::vector<char> find_anchors(const StepModel& model);

}  // namespace ebb::test
