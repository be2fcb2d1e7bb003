#include "ebb/threads.h"

#include <fmt/core.h>
#include <omp.h>

#include <atomic>

#include "core/parallel.h"
#include "core/processors.h"
#include "ebb/error.h"

namespace ebb {
namespace {

std::atomic<int> configured = 0;  // 0: not asked for yet

}  // namespace

int physical_cores() {
  static const int cores = [] {
    const int told = static_cast<int>(processors_of_cores().size());
    return told > 0 ? told : omp_get_num_procs();
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
  omp_set_num_threads(library_threads());
}

}  // namespace ebb
