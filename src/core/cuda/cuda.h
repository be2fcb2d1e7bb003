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

// What one allocation of `size` bytes takes from the device, as cudaMemGetInfo shows it. Large ones
// take whole pages of 2 MiB of their own. Others share such pages, in units of 512 bytes, so that a
// sum over them may be short of the truth by less than one page.
inline constexpr Bytes least_alone = 32_MiB;
constexpr Bytes reservation(Bytes size) {
  if (size < least_alone) return round_up(size < 1_B ? 1_B : size, 512_B);
  return round_up(size, 2_MiB);
}

// What cudaMemGetInfo's free memory fell by in those calls of `allocate` whose memory is not
// released yet. What the driver takes besides, for code that it loads when it is first used and for
// recorded steps, is not in it.
Bytes memory_taken(Device device);

// Zero bytes until written. Throws a MemoryError when there is no such memory.
std::byte* allocate(Device device, Bytes size);
void release(Device device, std::byte* data) noexcept;

// The streams on which the work of a device runs, each in order; a cudaStream_t. Everything is in
// the main one but what a step runs aside. Neither is the default stream, which would wait for
// every other.
enum class Lane : std::uint8_t { main, aside };
void* stream(Device device, Lane lane = Lane::main);
void synchronise(Device device);

// Copies in the order of the device's stream. Reading returns when the bytes are there; writing
// returns when `from` may be changed, unless that is pinned.
void write(Device device, void* to, const void* from, Bytes size);
void read(Device device, void* to, const void* from, Bytes size);
void copy(Device device, void* to, const void* from, Bytes size);  // within the device

// Memory of the host from which a device copies by itself: write() from there only starts the copy.
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

// Bad data noted by a kernel; the first of a step stays.
struct Fault {
  std::int32_t instruction = 0;  // 1 + the number of the instruction, or 0
  std::int32_t reserved = 0;
  std::int64_t position = 0, value = 0, limit = 0;
};

// What every step of a device reads and writes besides its buffers, in the device's memory. Steps
// of a device follow one another, so one such block serves all its programs.
struct Control {
  RandomState random;
  Fault fault;
};
Control* control(Device device);  // an address on the device
void write_random(Device device, const RandomState& state);
// Waits for the device, and gives the fault of the step, if any, and forgets it.
Fault take_fault(Device device);

struct DestroyEvent {
  void operator()(void* event) const noexcept;
};
using Events = std::vector<std::unique_ptr<void, DestroyEvent>>;  // each a cudaEvent_t

// Marks in the work of both lanes, for one to wait until the other has come so far. They can be
// recorded.
class Marks {
 public:
  Marks(Device device, std::size_t count);
  void set(std::size_t mark, Lane lane) const;  // behind all work of the lane so far
  void await(std::size_t mark, Lane lane) const;

 private:
  Device device_;
  Events events_;
};

// A step recorded once, to be replayed with one call.
class Recording {
 public:
  // Runs `work`, whose launches on the device's stream are recorded and not run.
  Recording(Device device, const std::function<void()>& work);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  void replay() const;

 private:
  Device device_;
  void* executable_ = nullptr;  // a cudaGraphExec_t
};

// Times of the device: marks between pieces of work in its main lane, which may be recorded with
// it. A replay's times are those of kernels; where the processor starts each, they are also those
// of starting, and a library may take longer for that than its kernel.
class Clock {
 public:
  Clock(Device device, std::size_t marks);
  void mark(std::size_t i) const;         // behind all work so far
  std::vector<double> intervals() const;  // ms from each mark to the next, all being passed

 private:
  Device device_;
  Events events_;
};

}  // namespace ebb::cuda
