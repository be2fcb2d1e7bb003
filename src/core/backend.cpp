#include "core/backend.h"

#include <fmt/core.h>

#include "core/cpu_backend.h"
#include "core/cuda_backend.h"
#include "ebb/error.h"

namespace ebb {

const Backend& backend_of(Device device) {
  switch (device.kind) {
    case Device::Kind::cuda:
      return cuda_backend();
    case Device::Kind::cpu:
      break;
  }
  return cpu_backend();
}

void copy_bytes(void* to, Device to_device, const void* from, Device from_device, Bytes size) {
  if (to_device == from_device)
    backend_of(to_device).copy(to_device, to, from, size);
  else if (from_device == device::cpu)
    backend_of(to_device).write(to_device, to, from, size);
  else if (to_device == device::cpu)
    backend_of(from_device).read(from_device, to, from, size);
  else
    throw DeviceError(fmt::format("the tensor is on {}, but is needed on {}",
                                  to_string(from_device), to_string(to_device)));
}

}  // namespace ebb
