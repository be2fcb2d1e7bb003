#include "cli/process_memory.h"

#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;

// The number after a word of a file: "VmRSS:     1234 kB" in /proc/self/status counts units of 1
// KiB, "inactive_file 4096" of a control group bytes.
std::optional<Bytes> number_after(const fs::path& path, const std::string& key, Bytes unit) {
  std::ifstream file(path);
  std::string word;
  while (file >> word)
    if (word == key) {
      std::int64_t count = 0;
      if (file >> count) return count * unit;
    }
  return {};
}

// A file with one number of bytes. "max", and a file that cannot be read, give no number.
std::optional<Bytes> number_in(const fs::path& path) {
  std::ifstream file(path);
  std::int64_t bytes = 0;
  if (file >> bytes) return Bytes{bytes};
  return {};
}

}  // namespace

Bytes process_resident() {
  return number_after("/proc/self/status", "VmRSS:", 1_KiB).value_or(Bytes{});
}
Bytes process_peak() {
  return number_after("/proc/self/status", "VmHWM:", 1_KiB).value_or(Bytes{});
}

// The address sanitizer has an allocator of its own: the C library's is never set up there, and not
// safe to trim from two threads at once.
void give_back_freed_memory() {
#ifndef __SANITIZE_ADDRESS__
  malloc_trim(0);
#endif
}
void return_large_blocks_at_once() { mallopt(M_MMAP_THRESHOLD, 128 << 10); }

std::optional<Bytes> control_group_room(const fs::path& root, const std::string& groups) {
  std::optional<Bytes> room;
  // The folder of the group itself and of every group around it; each may have a limit.
  const auto look = [&](const fs::path& top, fs::path group, const char* limit, const char* used) {
    for (;; group = group.parent_path()) {
      const fs::path folder = top / group.relative_path();
      const auto most = number_in(folder / limit), now = number_in(folder / used);
      if (most && now) {
        Bytes left = std::max(*most - *now, Bytes{});
        for (const char* cache : {"inactive_file", "active_file"})  // freed when memory is needed
          left += number_after(folder / "memory.stat", cache, 1_B).value_or(Bytes{});
        room = room ? std::min(*room, left) : left;
      }
      if (group.relative_path().empty()) return;
    }
  };
  std::ifstream file(groups);
  for (std::string line; std::getline(file, line);) {  // "0::/a/b", or "4:memory:/a/b"
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string kinds = line.substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    if (kinds.empty())
      look(root, group, "memory.max", "memory.current");
    else if (("," + kinds + ",").find(",memory,") != std::string::npos)
      look(root / "memory", group, "memory.limit_in_bytes", "memory.usage_in_bytes");
  }
  return room;
}

std::optional<Bytes> system_available() {
  const auto system = number_after("/proc/meminfo", "MemAvailable:", 1_KiB),
             group = control_group_room("/sys/fs/cgroup", "/proc/self/cgroup");
  if (system && group) return std::min(*system, *group);
  return system ? system : group;
}

}  // namespace ebb::cli
