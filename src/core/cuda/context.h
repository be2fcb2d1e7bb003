// State of each device from its first use to the end of the process. Its memory is part of the
// fixed cost of using CUDA, not of any plan.
#pragma once

#include <cuda_runtime_api.h>

#include "core/cuda/cuda.h"

namespace ebb::cuda {

struct Context {
  cudaStream_t stream = nullptr;
  cudaStream_t aside = nullptr;                   // low priority: the second lane of a step
  cudaStream_t store = nullptr, fetch = nullptr;  // copies to the host and from it
  Control* control = nullptr;                     // on the device
  Control* host_control = nullptr;                // in pinned memory, for copies that do not wait
};

// Makes the device current for the calling thread, and its context if there is none yet.
Context& use(Device device);

}  // namespace ebb::cuda
