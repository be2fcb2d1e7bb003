#include "cli/process_memory.h"

#include <fstream>
#include <string>

namespace ebb::cli {
namespace {

// A line of /proc/self/status such as "VmRSS:     1234 kB".
Bytes status_line(const std::string& key) {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word)
    if (word == key) {
      std::int64_t kilobytes = 0;
      file >> kilobytes;
      return {kilobytes * 1024};
    }
  return {};
}

}  // namespace

Bytes process_resident() { return status_line("VmRSS:"); }
Bytes process_peak() { return status_line("VmHWM:"); }

}  // namespace ebb::cli
