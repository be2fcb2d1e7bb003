// A plan as the page shows it (report/page.h): every buffer with its life and place, every
// instruction, and what was decided.
#pragma once

#include <span>
#include <string>

#include "ebb/plan.h"
#include "ebb/report/source_lines.h"

namespace ebb::report {

// One JSON object. Buffers and instructions are stored by columns, with op names and module paths
// as indices into "names", so that a plan of thousands of them stays small. `measured_ms` are the
// times of Program::timed_run, or nothing; `sources` are those of the model's modules.
std::string timeline_json(const Plan& plan, const SourceLines& sources = {},
                          std::span<const double> measured_ms = {});

// The instructions as a trace that chrome://tracing and Perfetto show: one event each, on a track
// for its phase (forward, backward, update, computed again), with the live bytes by category as
// counters. Times are `measured_ms`, or predictions where that is empty.
std::string chrome_trace(const Plan& plan, std::span<const double> measured_ms = {});

}  // namespace ebb::report
