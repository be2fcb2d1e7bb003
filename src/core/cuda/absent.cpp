// Stands in for CUDA in a build without it.
#include <fmt/core.h>

#include "core/cuda/cuda.h"
#include "ebb/error.h"

namespace ebb::cuda {
namespace {

[[noreturn]] void fail(Device device) {
  throw DeviceError(
      fmt::format("device {} is not available: this build has no CUDA", to_string(device)));
}

}  // namespace

bool built() { return false; }
int device_count() { return 0; }
void require(Device device) { fail(device); }
Properties properties(Device device) { fail(device); }
MemoryInfo memory_info(Device device) { fail(device); }
Bytes memory_taken(Device device) { fail(device); }
std::byte* allocate(Device device, Bytes) { fail(device); }
void release(Device, std::byte*) noexcept {}
void* stream(Device device, Lane) { fail(device); }
void synchronise(Device device) { fail(device); }
void write(Device device, void*, const void*, Bytes) { fail(device); }
void read(Device device, void*, const void*, Bytes) { fail(device); }
void copy(Device device, void*, const void*, Bytes) { fail(device); }
void pin(Device device, std::byte*, Bytes) { fail(device); }
void unpin(Device, std::byte*) noexcept {}
Pinned::Pinned(Device device, Bytes) { fail(device); }
Pinned::~Pinned() = default;
Control* control(Device device) { fail(device); }
void write_random(Device device, const RandomState&) { fail(device); }
Fault take_fault(Device device) { fail(device); }
void DestroyEvent::operator()(void*) const noexcept {}
Marks::Marks(Device device, std::size_t) { fail(device); }
void Marks::set(std::size_t, Lane) const { fail(device_); }
void Marks::await(std::size_t, Lane) const { fail(device_); }
Recording::Recording(Device device, const std::function<void()>&) { fail(device); }
Recording::~Recording() = default;
void Recording::replay() const { fail(device_); }
Clock::Clock(Device device, std::size_t) { fail(device); }
void Clock::mark(std::size_t) const { fail(device_); }
std::vector<double> Clock::intervals() const { fail(device_); }

}  // namespace ebb::cuda
