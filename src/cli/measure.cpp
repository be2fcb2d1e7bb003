#include "cli/measure.h"

#include <algorithm>

#include "cli/process_memory.h"
#include "core/cuda/cuda.h"

namespace ebb::cli {
namespace {

Bytes taken_memory(Device device) {
  return device.kind == Device::Kind::cuda ? cuda::memory_taken(device) : Bytes{};
}

}  // namespace

MemoryMeter::MemoryMeter(Device device) : device_(device), taken_before_(taken_memory(device)) {}

Measured MemoryMeter::read(const Leaves& leaves, Bytes resident) const {
  Measured measured;
  measured.total =
      device_.kind == Device::Kind::cuda ? taken_memory(device_) - taken_before_ : resident;
  for (const auto& leaf : leaves)
    if (leaf->storage()) measured.staying[leaf->category()] += leaf->storage()->resident();
  return measured;
}

Bytes MemoryMeter::beside(const Measured& measured) const {
  if (device_.kind != Device::Kind::cuda) return process_resident() - measured.total;
  const cuda::MemoryInfo all = cuda::memory_info(device_);
  return all.total - all.free - measured.total;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace ebb::cli
