// Files that describe devices, so that the planner can plan for another machine.
#pragma once

#include <filesystem>
#include <string>

#include "ebb/rates.h"
#include "ebb/tuning.h"

namespace ebb::io {

Rates load_device(const std::filesystem::path& path);
void save_device(const Rates& rates, const std::filesystem::path& path);
std::string describe_device(const Rates& rates);  // what such a file holds, on one line

// The rates of a device here: measured the first time, then read from a file under the user's cache
// folder ($XDG_CACHE_HOME or ~/.cache, in ebb/), unless another version of ebb has measured them.
// They influence what a plan recomputes, never its memory limit.
Rates rates_here(Device device = device::cpu);

// A device's tuning lies beside its file: for h200.json, in h200.tuning.json.
std::filesystem::path tuning_file(const std::filesystem::path& device_file);
// Without such a file, nothing is known.
Tuning load_tuning(const std::filesystem::path& device_file);
void save_tuning(const Tuning& tuning, const std::filesystem::path& device_file);

}  // namespace ebb::io
