#include "cli/short_waits.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace ebb::cli {
namespace {

constexpr const char* spins = "3000";  // about ten microseconds, longer than most gaps in a step

}  // namespace

void restart_with_short_waits(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  std::error_code missing;  // restarts under its own name, which process lists show
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", missing);
  if (!missing && setenv("GOMP_SPINCOUNT", spins, 1) == 0) execv(program.c_str(), argv);
  // It could not: training works all the same.
}

}  // namespace ebb::cli
