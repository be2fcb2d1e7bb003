// What a kind of device does for the rest of ebb: memory, copies and facts about it. Each kind is
// one implementation, so that nobody else in core, plan, runtime or train asks which kind a device
// is. How a step's kernels are started is runtime/runner.h's.
#pragma once

#include <memory>
#include <string>

#include "ebb/bytes.h"
#include "ebb/device.h"
#include "ebb/storage.h"

namespace ebb {

class Backend {
 public:
  virtual ~Backend() = default;

  // Throws a DeviceError that says what is missing unless the device can be used.
  virtual void require(Device device) const = 0;

  // A name for people, and the memory that the device has.
  virtual std::string name(Device device) const = 0;
  virtual Bytes memory(Device device) const = 0;

  // The bytes that the operating system or the driver takes for an allocation of `size` bytes.
  virtual Bytes reservation(Bytes size, PageSize pages) const = 0;
  // See Storage, which has functions of these names.
  virtual std::shared_ptr<Storage> allocate(Device device, Bytes size, PageSize pages) const = 0;
  virtual std::shared_ptr<Storage> growable(Device device, Bytes limit) const = 0;
  // Whether ebb may choose and lock the pages of the memory; elsewhere a driver does.
  virtual bool chooses_pages() const = 0;

  // Copies to the device from the host, from the device to the host, and within the device. The
  // host may change or read its bytes when the call returns.
  virtual void write(Device device, void* to, const void* from, Bytes size) const = 0;
  virtual void read(Device device, void* to, const void* from, Bytes size) const = 0;
  virtual void copy(Device device, void* to, const void* from, Bytes size) const = 0;

  virtual int lanes() const = 0;  // queues of kernels that can run at the same time
  // Whether the device runs by itself while the host goes on, and fetches the next inputs.
  virtual bool runs_beside_host() const = 0;
  // Where tensors go that do not fit into the device's own memory.
  virtual Tier second_tier() const = 0;
  // Whether arithmetic and memory traffic of a kernel overlap (see Rates::overlaps).
  virtual bool overlaps() const = 0;
  // Whether kernels call libraries whose algorithms must be known before planning (ebb/tuning.h),
  // and the device is here to be asked.
  virtual bool can_be_tuned(Device device) const = 0;
};

const Backend& backend_of(Device device);

// From anywhere to anywhere, except between two devices that are both not the host.
void copy_bytes(void* to, Device to_device, const void* from, Device from_device, Bytes size);

}  // namespace ebb
