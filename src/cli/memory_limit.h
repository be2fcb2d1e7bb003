// Detects a limit on the address space (ulimit -v) in which OpenBLAS cannot work: it would retry
// forever to allocate its buffers, some of them before `main`.
#pragma once

#include <cstdint>

namespace ebb::cli {

// The address space that the program and the buffers of OpenBLAS need, in bytes.
std::int64_t least_address_space(int processors);

}  // namespace ebb::cli
