// How ops describe their calls as steps of a resident kernel.
#pragma once

#include "ops/resident/task.h"

namespace ebb::resident {

// A step that runs alone by `run`; its `task` and `prepared` are still to be set.
Step step(const KernelRequest& request, std::function<void(const KernelArgs&)> run);

// Whether rows of half types can be normalised inside a resident kernel.
bool takes_norm(std::int64_t rows, std::int64_t columns);

// Whether a product can be, on a GPU with the shared memory of Hopper: those of one row.
bool takes_product(std::int64_t rows, std::int64_t inner);
// Whether the current GPU has it.
bool device_takes_products();

// The most tokens of a step, heads of all tokens' attention, and elements of a function of rows: a
// larger one is no small step between products.
inline constexpr std::int64_t most_rows = 8, most_heads = 4096, most_elements = 1 << 20;

}  // namespace ebb::resident
