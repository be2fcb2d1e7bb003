#include "ebb/threads.h"

#include <fmt/format.h>
#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <set>
#include <string>

#include "ebb/error.h"

namespace ebb {
namespace {

std::atomic<int> configured = 0;  // 0: not asked for yet

}  // namespace

// Distinct sets of sibling hardware threads among the processors this process may use.
int physical_cores() {
  static const int cores = [] {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return omp_get_num_procs();
    std::set<std::string> siblings;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &allowed)) continue;
      std::ifstream file(
          fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
      std::string list;
      siblings.insert(std::getline(file, list) ? list : std::to_string(cpu));
    }
    return std::max(1, static_cast<int>(siblings.size()));
  }();
  return cores;
}

int threads() {
  if (configured.load(std::memory_order_relaxed) == 0) set_threads(physical_cores());
  return configured.load(std::memory_order_relaxed);
}

void set_threads(int count) {
  if (count < 1)
    throw ValueError(fmt::format("the number of threads must be at least 1, but is {}", count));
  configured = count;
#ifdef EBB_PARALLEL_THREADS
  omp_set_num_threads(1);  // OpenBLAS and oneDNN know no threads but OpenMP's, which are not used
#else
  omp_set_num_threads(count);  // of OpenBLAS and oneDNN too
#endif
}

}  // namespace ebb
