// How fast a device is, as far as the planner's clock needs it.
#pragma once

#include <array>
#include <string>

#include "ebb/bytes.h"
#include "ebb/op.h"

namespace ebb {

// Operations a second of one kind of work, by the width of the numbers.
struct WorkRate {
  double f32 = 0.0, half = 0.0, f64 = 0.0;
};

// The defaults stand for two cores of a present server processor.
struct Rates {
  std::string name = "two CPU cores";
  Bytes memory = {};        // 0: not known
  double bandwidth = 12e9;  // bytes a second, read plus written
  double launch_us = 1.0;   // fixed cost of one instruction
  std::array<WorkRate, work_count> work{{
      {2e9, 1e9, 1e9},       // elementwise
      {150e9, 100e9, 75e9},  // product
      {60e9, 40e9, 10e9},    // attention
      {100e9, 50e9, 20e9},   // convolution
  }};

  WorkRate& operator[](Work kind) { return work[static_cast<std::size_t>(kind)]; }
  const WorkRate& operator[](Work kind) const { return work[static_cast<std::size_t>(kind)]; }

  // Milliseconds of one call with this cost on numbers of this type.
  double predict_ms(const Cost& cost, DType dtype) const;
};

}  // namespace ebb
