#include "core/processors.h"

#include <fmt/core.h>
#include <sched.h>

#include <fstream>
#include <set>
#include <string>

namespace ebb {

std::vector<int> processors_of_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {};
  std::set<std::string> seen;  // sets of sibling processors, which share a core
  std::vector<int> processors;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    std::ifstream file(
        fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
    std::string siblings;
    if (!std::getline(file, siblings)) siblings = std::to_string(cpu);
    if (seen.insert(siblings).second) processors.push_back(cpu);
  }
  return processors;
}

void keep_to(std::span<const int> processors) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  for (const int processor : processors) CPU_SET(processor, &allowed);
  sched_setaffinity(0, sizeof allowed, &allowed);
}

}  // namespace ebb
