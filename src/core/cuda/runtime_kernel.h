// Kernels compiled while the program runs, by NVRTC. The machine code is kept in the process and in
// the user's cache folder, so that a source is compiled once.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "ebb/device.h"

namespace ebb::cuda {

// The kernel `name` of a source, to be given to cudaLaunchKernel. Compiled without contraction into
// fused multiply-add, so that a chain of functions gives the same bits in one kernel or in several.
cudaKernel_t runtime_kernel(Device device, const std::string& source, const char* name);

// Machine code for a processor such as "sm_90"; needs no GPU.
std::string compile(const std::string& source, const std::string& processor);

}  // namespace ebb::cuda
