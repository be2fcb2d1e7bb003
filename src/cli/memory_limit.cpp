#include "cli/memory_limit.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>

namespace ebb::cli {

std::int64_t least_address_space(int processors) {
  // Code, libraries and stacks took 450 MB on the machine this was measured on; each thread of
  // OpenBLAS has a buffer of 32 MiB or more and a stack.
  constexpr std::int64_t program = std::int64_t{640} << 20, thread = std::int64_t{64} << 20;
  return program + processors * thread;
}

namespace {

// Runs before the constructors of shared libraries, OpenBLAS's among them: only system calls and
// functions of the C library that need no state are used here.
void check_memory_limit() {
  struct rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  const int processors = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  const std::int64_t least = least_address_space(processors);
  if (static_cast<std::int64_t>(limit.rlim_cur) >= least) return;
  char text[320];
  const int size = std::snprintf(
      text, sizeof text,
      "ebb: error: the limit on address space (ulimit -v) is %lld KiB, but the program and the "
      "buffers of OpenBLAS for %d threads need %lld KiB; raise the limit, or bound what a run "
      "takes "
      "by --budget SIZE --whole-process\n",
      static_cast<long long>(limit.rlim_cur >> 10), processors,
      static_cast<long long>(least >> 10));
  if (size > 0) [[maybe_unused]]
    const ssize_t written = write(2, text, static_cast<size_t>(size));
  _exit(1);
}

}  // namespace
}  // namespace ebb::cli

using Initializer = void (*)();
__attribute__((section(".preinit_array"), used)) static Initializer check_before_libraries =
    ebb::cli::check_memory_limit;
