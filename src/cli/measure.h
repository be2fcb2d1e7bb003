// Measuring training from outside: what the system holds for it.
#pragma once

#include <vector>

#include "ebb/device.h"
#include "ebb/plan.h"

namespace ebb::cli {

// What the operating system or the driver holds after a run. The arena's bytes cannot be told
// apart from outside; what stays between steps can.
struct Measured {
  Bytes total;
  CategoryBytes staying;  // weights, optimizer state, constants
  Bytes transient() const { return total - staying.total(); }
};

// On the CPU, the resident pages of all that the plan counts. On a GPU, what the driver's free
// memory fell by in allocations since the meter was made: make it before the first step.
class MemoryMeter {
 public:
  explicit MemoryMeter(Device device);
  // After steps of a plan: what they took. `resident` is what the system holds on the CPU.
  Measured read(const Leaves& leaves, Bytes resident) const;
  // What is taken beside that: by the process on the CPU, by the driver, code and libraries on a
  // GPU that nobody else uses.
  Bytes beside(const Measured& measured) const;

 private:
  Device device_;
  Bytes taken_before_;
};

double median(std::vector<double> values);  // of at least one

}  // namespace ebb::cli
