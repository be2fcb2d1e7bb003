#include "cli/short_waits.h"

#include <unistd.h>

#include <cstdlib>

namespace ebb::cli {
namespace {

constexpr const char* spins = "3000";  // some ten microseconds, longer than most gaps of a step

}  // namespace

void restart_with_short_waits(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  if (setenv("GOMP_SPINCOUNT", spins, 1) == 0) execv("/proc/self/exe", argv);
  // It could not: training works all the same.
}

}  // namespace ebb::cli
