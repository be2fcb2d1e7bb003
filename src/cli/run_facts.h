// Facts that a result needs beside its numbers: date, machine, version of ebb and command.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "ebb/bytes.h"

namespace ebb::cli {

std::string command_line();  // this process's, as one could type it again: "ebb ablate --runs 3"
std::string today();         // "2026-11-15", UTC
Bytes physical_memory();

// {"date", "version", "command", "device", "threads", "cores", "memory_bytes"}
nlohmann::ordered_json run_facts(const std::string& device);

}  // namespace ebb::cli
