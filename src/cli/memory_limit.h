// A limit on the address space (ulimit -v) that OpenBLAS cannot live in: it would try again and
// again to get its buffers, for ever, some of them before `main`.
#pragma once

#include <cstdint>

namespace ebb::cli {

// The address space that the program and the buffers of OpenBLAS need, in bytes.
std::int64_t least_address_space(int processors);

}  // namespace ebb::cli
