// This process's memory, and the memory still available, as the operating system reports them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "ebb/bytes.h"

namespace ebb::cli {

Bytes process_resident();  // now
Bytes process_peak();      // the most so far

// Returns unused memory of the heap to the system.
void give_back_freed_memory();
// From now on, blocks of 128 KiB and more are returned to the system as soon as they are freed.
// Otherwise the heap keeps ever larger ones.
void return_large_blocks_at_once();

// Memory that can be taken without paging: the system's figure or, if a control group allows less,
// what is left of its limit. No value: not known.
std::optional<Bytes> system_available();

// The least room left by control groups of version 1 and 2 below `root`; `groups` is a file in the
// form of /proc/self/cgroup.
std::optional<Bytes> control_group_room(const std::filesystem::path& root,
                                        const std::string& groups);

}  // namespace ebb::cli
