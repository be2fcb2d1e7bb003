// How fast a folder's disk is for offloading.
#pragma once

#include <filesystem>
#include <string>

#include "ebb/bytes.h"

namespace ebb {

struct DiskRates {
  double read = 0.0, write = 0.0;  // bytes per second, one direction at a time
  double each_of_both = 0.0;       // bytes per second of each direction while both are busy
  bool direct = false;             // whether the page cache was bypassed; see OffloadFile
  std::string method;              // "io_uring" or "threads"
};

// Writes and reads up to `size` bytes in order, through an OffloadFile of that size. Takes at most
// about nine seconds, however slow the disk is, and 64 MiB of memory.
DiskRates measure_disk(const std::filesystem::path& folder, Bytes size = 1_GiB);

}  // namespace ebb
