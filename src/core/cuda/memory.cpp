#include <fmt/core.h>

#include <map>
#include <mutex>

#include "core/cuda/check.h"
#include "core/cuda/context.h"
#include "core/cuda/heap.h"
#include "ebb/error.h"

namespace ebb::cuda {
namespace {

std::size_t count(Bytes size) { return static_cast<std::size_t>(size.count); }

// The allocations on a device.
class Memory {
 public:
  explicit Memory(Device device) : heap(device) {}

  // Allocates or releases, and counts the change of the driver's free memory.
  template <class Change>
  void count(const Change& change) {
    const std::lock_guard lock(mutex_);
    const Bytes before = free_now();
    change();
    taken_ += before - free_now();
  }
  Bytes taken() {
    const std::lock_guard lock(mutex_);
    return taken_;
  }

  Heap heap;

 private:
  static Bytes free_now() {
    std::size_t free = 0, total = 0;
    (void)cudaMemGetInfo(&free, &total);
    return {static_cast<std::int64_t>(free)};
  }

  std::mutex mutex_;
  Bytes taken_;
};

// Never destroyed: see Context.
Memory& memory(Device device) {
  static auto& all = *new std::map<int, Memory>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  return all.try_emplace(device.index, device).first->second;
}

std::byte* allocate_alone(Bytes size) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, count(size));
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  check(error, "cudaMalloc");
  return static_cast<std::byte*>(data);
}

}  // namespace

MemoryInfo memory_info(Device device) {
  use(device);
  std::size_t free = 0, total = 0;
  EBB_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {{static_cast<std::int64_t>(free)}, {static_cast<std::int64_t>(total)}};
}

Bytes memory_taken(Device device) {
  use(device);
  return memory(device).taken();
}

std::byte* allocate(Device device, Bytes size) {
  const Context& context = use(device);
  std::byte* data = nullptr;
  Memory& own = memory(device);
  own.count([&] { data = size < least_alone ? own.heap.allocate(size) : allocate_alone(size); });
  if (!data)
    throw MemoryError(fmt::format("cannot allocate {} on {}: {} of {} are free", to_string(size),
                                  to_string(device), to_string(memory_info(device).free),
                                  to_string(memory_info(device).total)));
  EBB_CUDA_CHECK(cudaMemsetAsync(data, 0, count(size), context.stream));
  return data;
}

// Waits for the device, as cudaFree does, so that no running kernel loses its memory.
void release(Device device, std::byte* data) noexcept {
  (void)cudaSetDevice(device.index);
  (void)cudaDeviceSynchronize();
  Memory& own = memory(device);
  own.count([&] {
    if (!own.heap.release(data)) (void)cudaFree(data);
  });
}

// For pageable memory, the driver has made its own copy when the call returns.
void write(Device device, void* to, const void* from, Bytes size) {
  if (size.count == 0) return;
  EBB_CUDA_CHECK(
      cudaMemcpyAsync(to, from, count(size), cudaMemcpyHostToDevice, use(device).stream));
}

void pin(Device device, std::byte* data, Bytes size) {
  use(device);
  const cudaError_t error = cudaHostRegister(data, count(size), cudaHostRegisterDefault);
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();
  throw MemoryError(fmt::format("cannot pin {} of the host's memory for {}: {}", to_string(size),
                                to_string(device), cudaGetErrorString(error)));
}

void unpin(Device device, std::byte* data) noexcept {
  (void)cudaSetDevice(device.index);
  (void)cudaDeviceSynchronize();
  (void)cudaHostUnregister(data);
}

Pinned::Pinned(Device device, Bytes size) : device_(device) {
  use(device);
  EBB_CUDA_CHECK(cudaHostAlloc(reinterpret_cast<void**>(&data_), count(size), 0));
}
Pinned::~Pinned() {
  (void)cudaSetDevice(device_.index);
  (void)cudaDeviceSynchronize();
  (void)cudaFreeHost(data_);
}

void read(Device device, void* to, const void* from, Bytes size) {
  if (size.count == 0) return;
  const Context& context = use(device);
  EBB_CUDA_CHECK(cudaMemcpyAsync(to, from, count(size), cudaMemcpyDeviceToHost, context.stream));
  EBB_CUDA_CHECK(cudaStreamSynchronize(context.stream));
}

void copy(Device device, void* to, const void* from, Bytes size) {
  if (size.count == 0) return;
  EBB_CUDA_CHECK(
      cudaMemcpyAsync(to, from, count(size), cudaMemcpyDeviceToDevice, use(device).stream));
}

Control* control(Device device) { return use(device).control; }

void write_random(Device device, const RandomState& state) {
  const Context& context = use(device);
  // If a step was started and not waited for, the previous transfer may still be running.
  EBB_CUDA_CHECK(cudaStreamSynchronize(context.stream));
  context.host_control->random = state;
  EBB_CUDA_CHECK(cudaMemcpyAsync(&context.control->random, &context.host_control->random,
                                 sizeof state, cudaMemcpyHostToDevice, context.stream));
}

Fault take_fault(Device device) {
  const Context& context = use(device);
  EBB_CUDA_CHECK(cudaMemcpyAsync(&context.host_control->fault, &context.control->fault,
                                 sizeof(Fault), cudaMemcpyDeviceToHost, context.stream));
  EBB_CUDA_CHECK(cudaStreamSynchronize(context.stream));
  const Fault fault = context.host_control->fault;
  if (fault.instruction != 0)
    EBB_CUDA_CHECK(cudaMemsetAsync(&context.control->fault, 0, sizeof(Fault), context.stream));
  return fault;
}

}  // namespace ebb::cuda
