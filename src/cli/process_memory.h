// What the operating system says of this process's memory, and of how much more there is.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "ebb/bytes.h"

namespace ebb::cli {

Bytes process_resident();  // now
Bytes process_peak();      // the most so far

// Returns to the system what the heap holds and nobody uses.
void give_back_freed_memory();
// From now on, blocks of 128 KiB and more go back to the system as soon as they are freed.
// Otherwise the heap keeps ever larger ones.
void return_large_blocks_at_once();

// What can be taken without paging: the system's figure or, where a control group allows less, what
// is left of its limit. None: not known.
std::optional<Bytes> system_available();

// The least room that control groups leave, those of version 1 and 2 below `root`; `groups` is a
// file in the form of /proc/self/cgroup.
std::optional<Bytes> control_group_room(const std::filesystem::path& root,
                                        const std::string& groups);

}  // namespace ebb::cli
