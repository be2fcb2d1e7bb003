#pragma once

#include "core/backend.h"

namespace ebb {

// There in every build. Without CUDA, what needs a device throws; the facts that plans need remain.
const Backend& cuda_backend();

}  // namespace ebb
