// Heap memory that binding a step's kernels takes, as part of a process's fixed cost.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ebb/bytes.h"

namespace ebb::cli {

// Measured for a Llama of 22 layers: up to 8 KiB for each instruction.
inline Bytes bytes_of_bound_step(std::size_t instructions) {
  return static_cast<std::int64_t>(instructions) * 8_KiB;
}
// Before the plan is known, each of a transformer's parameters is counted as about 12 instructions.
inline std::size_t instructions_to_come(std::size_t parameters) { return 12 * parameters; }
inline Bytes bytes_of_step_to_come(std::size_t parameters) {
  return bytes_of_bound_step(instructions_to_come(parameters));
}

}  // namespace ebb::cli
