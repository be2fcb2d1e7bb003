#include "core/cuda/context.h"

#include <fmt/core.h>

#include <mutex>
#include <new>
#include <vector>

#include "core/cuda/check.h"
#include "ebb/error.h"

namespace ebb::cuda {
namespace {

struct Devices {
  int count = 0;
  std::string missing;  // why there are none

  Devices() {
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) return;
    count = 0;
    missing = error == cudaSuccess ? "no CUDA device was found" : cudaGetErrorString(error);
    (void)cudaGetLastError();
  }
};

const Devices& devices() {
  static const Devices found;
  return found;
}

void open(Context& context) {
  int least = 0, greatest = 0;
  EBB_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  EBB_CUDA_CHECK(cudaStreamCreateWithPriority(&context.stream, cudaStreamNonBlocking, greatest));
  EBB_CUDA_CHECK(cudaStreamCreateWithPriority(&context.aside, cudaStreamNonBlocking, least));
  EBB_CUDA_CHECK(cudaStreamCreateWithPriority(&context.store, cudaStreamNonBlocking, greatest));
  EBB_CUDA_CHECK(cudaStreamCreateWithPriority(&context.fetch, cudaStreamNonBlocking, greatest));
  EBB_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&context.control), sizeof(Control)));
  EBB_CUDA_CHECK(
      cudaHostAlloc(reinterpret_cast<void**>(&context.host_control), sizeof(Control), 0));
  new (context.host_control) Control;
  EBB_CUDA_CHECK(cudaMemsetAsync(context.control, 0, sizeof(Control), context.stream));
}

}  // namespace

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();  // clears errors that are not sticky
  const std::string message = fmt::format("[cuda] {}: {}", call, cudaGetErrorString(error));
  if (error == cudaErrorMemoryAllocation) throw MemoryError(message);
  throw DeviceError(message);
}

bool built() { return true; }
int device_count() { return devices().count; }

void require(Device device) {
  const Devices& all = devices();
  if (device.index >= 0 && device.index < all.count) return;
  throw DeviceError(
      fmt::format("device {} is not available: {}", to_string(device),
                  all.count > 0 ? fmt::format("there are {}", all.count) : all.missing));
}

Context& use(Device device) {
  require(device);
  // Never destroyed: the driver may be gone before static objects are.
  static std::vector<Context>& contexts =
      *new std::vector<Context>(static_cast<std::size_t>(device_count()));
  static std::mutex mutex;
  EBB_CUDA_CHECK(cudaSetDevice(device.index));
  Context& context = contexts[static_cast<std::size_t>(device.index)];
  const std::lock_guard lock(mutex);
  if (!context.host_control) open(context);
  return context;
}

Properties properties(Device device) {
  require(device);
  cudaDeviceProp p;
  EBB_CUDA_CHECK(cudaGetDeviceProperties(&p, device.index));
  return {p.name,
          {static_cast<std::int64_t>(p.totalGlobalMem)},
          p.multiProcessorCount,
          p.major,
          p.minor};
}

void* stream(Device device, Lane lane) {
  const Context& context = use(device);
  switch (lane) {
    case Lane::aside:
      return context.aside;
    case Lane::store:
      return context.store;
    case Lane::fetch:
      return context.fetch;
    case Lane::main:
      break;
  }
  return context.stream;
}

void synchronise(Device device) { EBB_CUDA_CHECK(cudaStreamSynchronize(use(device).stream)); }

}  // namespace ebb::cuda
