// Measuring a training step from outside: what the system holds for it.
#pragma once

#include <vector>

#include "ebb/device.h"
#include "ebb/plan.h"
#include "ebb/train/train_step.h"

namespace ebb::cli {

// What the operating system or the driver holds after a run. The arena's bytes cannot be told
// apart from outside; what stays between steps can.
struct Measured {
  Bytes total;
  CategoryBytes staying;  // weights, optimizer state, constants
  Bytes transient() const { return total - staying.total(); }
};

// On the CPU, the resident pages of all that the plan counts. On a GPU, what the driver's free
// memory fell by since the meter was made: make it before the step.
class MemoryMeter {
 public:
  explicit MemoryMeter(Device device);
  Measured read(TrainStep& step, const std::vector<TensorType>& types) const;

 private:
  Device device_;
  Bytes free_before_;
};

double median(std::vector<double> values);  // of at least one

}  // namespace ebb::cli
