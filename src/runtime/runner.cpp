#include "runtime/runner.h"

#include <fmt/format.h>

#include "ebb/error.h"

namespace ebb {

void Runner::raise(const Instruction& instruction, const Fault& fault) {
  const std::string& path = instruction.path;
  throw ValueError(fmt::format("[{}]{} index {} at position {} is outside [0, {})",
                               instruction.op->name(),
                               path.empty() ? "" : fmt::format(" at \"{}\":", path), fault.value,
                               fault.position, fault.limit));
}

std::unique_ptr<Runner> make_runner(Device device, std::shared_ptr<cuda::RankLink> link) {
  return device.kind == Device::Kind::cpu ? make_cpu_runner()
                                          : make_cuda_runner(device, std::move(link));
}

}  // namespace ebb
