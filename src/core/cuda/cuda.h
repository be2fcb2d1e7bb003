// CUDA devices as the rest of ebb sees them: memory, one stream each, and recorded steps. Nothing
// here needs CUDA's headers. In a build without CUDA (absent.cpp) there are no devices, and every
// function that needs one throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ebb/bytes.h"
#include "ebb/device.h"
#include "ebb/random.h"

namespace ebb::cuda {

bool built();  // whether this build has CUDA

// Devices that can be used now: none without a GPU, without its driver, or without CUDA in this
// build.
int device_count();
// Throws a DeviceError that says what is missing unless the device can be used.
void require(Device device);

struct Properties {
  std::string name;
  Bytes memory;
  int multiprocessors = 0;
  int major = 0, minor = 0;  // compute capability
};
Properties properties(Device device);

struct MemoryInfo {
  Bytes free, total;
};
MemoryInfo memory_info(Device device);

// The device memory that one allocation of `size` bytes takes, as cudaMemGetInfo shows it. Large
// allocations take whole pages of 2 MiB. Small ones share pages, in units of 512 bytes, so a sum
// over them may be too low by less than one page.
inline constexpr Bytes least_alone = 32_MiB;
constexpr Bytes reservation(Bytes size) {
  if (size < least_alone) return round_up(size < 1_B ? 1_B : size, 512_B);
  return round_up(size, 2_MiB);
}

// The amount by which the free memory of cudaMemGetInfo fell in those calls of `allocate` whose
// memory is not yet released. It excludes the driver's own memory, for code loaded on first use and
// for captured graphs.
Bytes memory_taken(Device device);

// Zero bytes until written. Throws a MemoryError if there is not enough memory.
std::byte* allocate(Device device, Bytes size);
void release(Device device, std::byte* data) noexcept;

// The streams (cudaStream_t) of a device. All work runs on the main one, except the other lanes of
// a step. None is the default stream, which would synchronise with all others.
enum class Lane : std::uint8_t { main, aside, store, fetch };
inline constexpr int lane_count = 4;
void* stream(Device device, Lane lane = Lane::main);
void synchronise(Device device);

// Copies, in the order of the device's stream. read() returns after the copy. write() returns when
// `from` may be changed, or at once if `from` is pinned memory.
void write(Device device, void* to, const void* from, Bytes size);
void read(Device device, void* to, const void* from, Bytes size);
void copy(Device device, void* to, const void* from, Bytes size);  // within the device

// Pinned host memory: write() from there is asynchronous.
class Pinned {
 public:
  Pinned(Device device, Bytes size);
  ~Pinned();  // waits for copies
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  std::byte* data() const { return data_; }

 private:
  Device device_;
  std::byte* data_ = nullptr;
};

// Makes memory of the host, in whole pages, pinned memory and back.
void pin(Device device, std::byte* data, Bytes size);
void unpin(Device device, std::byte* data) noexcept;

// Bad data reported by a kernel; the first report of a step is kept.
struct Fault {
  std::int32_t instruction = 0;  // 1 + the number of the instruction, or 0
  std::int32_t reserved = 0;
  std::int64_t position = 0, value = 0, limit = 0;
};

// Data in device memory that every step reads and writes in addition to its buffers. Steps of a
// device run in sequence, so one block serves all its programs.
struct Control {
  RandomState random;
  Fault fault;
};
Control* control(Device device);  // an address on the device
void write_random(Device device, const RandomState& state);
// Waits for the device, then returns and clears the fault of the step, if any.
Fault take_fault(Device device);

struct DestroyEvent {
  void operator()(void* event) const noexcept;
};
using Events = std::vector<std::unique_ptr<void, DestroyEvent>>;  // each a cudaEvent_t

// Events with which one lane waits for the other. They can be captured in a graph.
class Marks {
 public:
  Marks(Device device, std::size_t count);
  void set(std::size_t mark, Lane lane) const;  // after all work of the lane so far
  void await(std::size_t mark, Lane lane) const;

 private:
  Device device_;
  Events events_;
};

// A step captured as a CUDA graph, replayed with one call.
class Recording {
 public:
  // Calls `work` and captures its launches on the device's stream without running them.
  Recording(Device device, const std::function<void()>& work);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  void replay() const;
  std::size_t size() const { return size_; }  // launches, copies and fills

 private:
  Device device_;
  void* executable_ = nullptr;  // a cudaGraphExec_t
  std::size_t size_ = 0;
};

// Timing events between pieces of work in the main lane, which may be captured with it. In a
// replayed graph they measure kernels alone. Otherwise they include launch overhead, which for a
// library call may exceed the kernel's time.
class Clock {
 public:
  Clock(Device device, std::size_t marks);
  void mark(std::size_t i) const;         // after all work so far
  std::vector<double> intervals() const;  // ms from each mark to the next, all being passed

 private:
  Device device_;
  Events events_;
};

}  // namespace ebb::cuda
