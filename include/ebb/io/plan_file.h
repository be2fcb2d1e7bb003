// Plans in files: made in one process, run in another, to the same bits and the same peak.
#pragma once

#include <filesystem>

#include "ebb/plan.h"

namespace ebb::io {

// Writes a plan of `graph`, with a fingerprint of every node.
void save_plan(const Plan& plan, const Graph& graph, const std::filesystem::path& path);

// Reads a plan for `graph`. It is refused with the first difference if it was made for another
// graph or another kind of device, and checked (check_plan) before it is returned, so that no file
// makes a program read or write outside its memory.
Plan load_plan(const std::filesystem::path& path, const Graph& graph);

}  // namespace ebb::io
