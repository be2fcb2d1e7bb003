// How ops describe their calls as steps of a resident kernel.
#pragma once

#include "ops/resident/task.h"

namespace ebb::resident {

// A step that runs alone by `run`; the caller sets its `task` and `prepared`.
Step step(const KernelRequest& request, std::function<void(const KernelArgs&)> run);

// Whether a resident kernel can normalise rows of a half type.
bool takes_norm(std::int64_t rows, std::int64_t columns);

// Whether a resident kernel can compute a product, which must have one row, on a GPU with the
// shared memory of Hopper.
bool takes_product(std::int64_t rows, std::int64_t inner);
// Whether the current GPU has that much shared memory.
bool device_takes_products();

// The most tokens of a step, heads of the attention of all tokens, and elements of a function of
// rows. Anything larger is not a small step between products.
inline constexpr std::int64_t most_rows = 8, most_heads = 4096, most_elements = 1 << 20;

}  // namespace ebb::resident
