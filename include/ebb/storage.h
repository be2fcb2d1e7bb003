// Bytes on a device, owned. The only way ebb takes memory for tensors.
#pragma once

#include <cstddef>
#include <memory>

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

  // What the operating system gives for `size` bytes: whole pages.
  static Bytes reservation(Bytes size);

  std::byte* data() const { return data_; }
  Bytes size() const { return size_; }
  Bytes reserved() const { return reserved_; }  // reservation(size())
  Device device() const { return device_; }

  // How much of it the operating system holds in memory now.
  Bytes resident() const;

 private:
  Storage(Device device, Bytes size);

  Device device_;
  Bytes size_, reserved_;
  std::byte* data_ = nullptr;
};

Bytes live_bytes();  // reserved by all storages of the process now

}  // namespace ebb
