// Turns failed CUDA calls into errors that name the call: "[cuda] cudaMalloc(&data, bytes): out of
// memory".
#pragma once

#include <cuda_runtime_api.h>

namespace ebb::cuda {

// Throws a MemoryError when memory ran out, else a DeviceError; returns when there is no error.
void check(cudaError_t error, const char* call);

}  // namespace ebb::cuda

#define EBB_CUDA_CHECK(call) ::ebb::cuda::check((call), #call)
