// Measures the memory of training from outside: what the operating system or the driver holds.
#pragma once

#include <vector>

#include "ebb/device.h"
#include "ebb/plan.h"

namespace ebb::cli {

// What the operating system or the driver holds after a run. From outside, the contents of the
// arena cannot be told apart, but the memory that stays between steps can.
struct Measured {
  Bytes total;
  CategoryBytes staying;  // weights, optimizer state, constants
  Bytes transient() const { return total - staying.total(); }
};

// On the CPU, the resident pages of everything that the plan counts. On a GPU, the drop of the
// driver's free memory by allocations since the meter was made: make it before the first step.
class MemoryMeter {
 public:
  explicit MemoryMeter(Device device);
  // The memory taken by a plan, after some of its steps. `resident` is what the system holds on the
  // CPU.
  Measured read(const Leaves& leaves, Bytes resident) const;
  // Memory taken beside that: on the CPU by the process; on a GPU that nobody else uses, by the
  // driver, code and libraries.
  Bytes beside(const Measured& measured) const;

 private:
  Device device_;
  Bytes taken_before_;
};

double median(std::vector<double> values);  // of at least one

}  // namespace ebb::cli
