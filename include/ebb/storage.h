// Bytes on a device, owned. The only way ebb takes memory for tensors.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "ebb/bytes.h"
#include "ebb/device.h"

namespace ebb {

inline constexpr Bytes buffer_alignment = 64_B;  // a cache line, and the widest vector

class Storage {
 public:
  // Zero bytes until written. Throws MemoryError when there is no such memory.
  static std::shared_ptr<Storage> allocate(Device device, Bytes size);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  // What the operating system gives for `size` bytes, or the driver of a device: whole pages.
  static Bytes reservation(Bytes size, Device device = device::cpu);

  std::byte* data() const { return data_; }  // an address on the device
  Bytes size() const { return size_; }
  Bytes reserved() const { return reserved_; }  // reservation(size(), device())
  Device device() const { return device_; }

  // Copies between the first bytes of the storage and the host.
  void write(std::span<const std::byte> bytes);
  void read(std::span<std::byte> bytes) const;

  // How much of it the operating system holds in memory now; all of it on a device.
  Bytes resident() const;

 private:
  Storage(Device device, Bytes size);

  Device device_;
  Bytes size_, reserved_;
  std::byte* data_ = nullptr;
};

Bytes live_bytes();  // reserved by all storages of the process now

}  // namespace ebb
