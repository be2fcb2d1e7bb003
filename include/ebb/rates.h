// How fast a device is, as far as the planner's clock needs it.
#pragma once

#include <array>
#include <string>

#include "ebb/bytes.h"
#include "ebb/device.h"
#include "ebb/op.h"

namespace ebb {

// Operations a second of one kind of work, by the numbers' type: processors multiply bfloat16 where
// they convert float16, and the other way round. One of elementwise work is an addition of numbers
// that lie in the first-level cache; other functions count as several (see PointwiseRow::work).
struct WorkRate {
  double f32 = 0.0, bf16 = 0.0, f16 = 0.0, f64 = 0.0;
};

// The defaults stand for two cores of a present server processor.
struct Rates {
  std::string name = "two CPU cores";
  Device::Kind kind = Device::Kind::cpu;
  Bytes memory = {};        // 0: not known
  double bandwidth = 20e9;  // bytes a second, read plus written
  double launch_us = 0.3;   // fixed cost of one instruction
  // So many bytes of what an instruction moves, it finds in a cache: left there by the one before.
  Bytes cache = 8_MiB;
  double cache_bandwidth = 80e9;
  // Whether a kernel computes while it waits for memory, as a GPU's do with their many threads:
  // then the longer of both counts, otherwise the sum.
  bool overlaps = false;
  std::array<WorkRate, work_count> work{{
      {40e9, 28e9, 28e9, 8e9},       // elementwise
      {200e9, 400e9, 180e9, 100e9},  // product
      {220e9, 200e9, 200e9, 70e9},   // attention
      {220e9, 340e9, 200e9, 75e9},   // convolution
  }};

  WorkRate& operator[](Work of) { return work[static_cast<std::size_t>(of)]; }
  const WorkRate& operator[](Work of) const { return work[static_cast<std::size_t>(of)]; }

  double seconds_to_move(Bytes bytes) const;
  // Milliseconds of one call with this cost on numbers of this type.
  double predict_ms(const Cost& cost, DType dtype) const;
};

}  // namespace ebb
