#include "cli/measure.h"

#include <algorithm>

#include "core/cuda/cuda.h"

namespace ebb::cli {
namespace {

Bytes free_memory(Device device) {
  return device.kind == Device::Kind::cuda ? cuda::memory_info(device).free : Bytes{};
}

}  // namespace

MemoryMeter::MemoryMeter(Device device) : device_(device), free_before_(free_memory(device)) {}

Measured MemoryMeter::read(TrainStep& step, const std::vector<TensorType>& types) const {
  Measured measured;
  measured.total = device_.kind == Device::Kind::cuda ? free_before_ - free_memory(device_)
                                                      : step.resident(types);
  for (const Buffer& buffer : step.plan(types).buffers)
    if (buffer.persistent)
      measured.staying[buffer.category] += buffer.persistent->storage()->resident();
  return measured;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace ebb::cli
