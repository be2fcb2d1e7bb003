// Owned bytes on a device. All memory for tensors is allocated here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "ebb/bytes.h"
#include "ebb/device.h"
#include "ebb/tier.h"

namespace ebb {

inline constexpr Bytes buffer_alignment = 64_B;  // a cache line, and the widest vector

// The page size of an allocation. Huge pages cause fewer TLB misses; if the kernel has none it uses
// standard pages (see ebb/machine.h), and the byte counts stay the same.
enum class PageSize : std::uint8_t { standard, huge };
inline constexpr Bytes huge_page = 2_MiB;

class TierBlock;

// A range of a block outside the device.
struct TierPart {
  TierBlock* block = nullptr;
  Bytes offset;
};

class Storage {
 public:
  // Zero bytes until written. Throws MemoryError if there is not enough memory.
  static std::shared_ptr<Storage> allocate(Device device, Bytes size,
                                           PageSize pages = PageSize::standard);
  // Reserves address space for up to `limit` bytes without memory, until resize() is called. Only
  // on the host, like resizing.
  static std::shared_ptr<Storage> growable(Device device, Bytes limit);
  virtual ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  static std::int64_t allocations();  // made so far, by all of the process

  // The bytes that the operating system, or the driver of a device, takes for `size` bytes: whole
  // pages.
  static Bytes reservation(Bytes size, PageSize pages = PageSize::standard);
  static Bytes reservation(Device device, Bytes size, PageSize pages = PageSize::standard);

  // Holds `size` bytes from now on, at most limit(), at the same address. Bytes within both sizes
  // are kept; new pages are zero, removed pages are returned to the operating system at once.
  // Throws MemoryError, and changes nothing, if there is not enough memory.
  virtual void resize(Bytes size) = 0;

  // Makes the operating system provide every page now instead of at the first write, so that memory
  // cannot run out later. Throws MemoryError when there is not enough.
  virtual void populate() = 0;

  // An address that the device can use; null for bytes in a file.
  std::byte* data() const { return data_; }
  Bytes size() const { return size_; }
  Bytes limit() const { return limit_; }
  Bytes reserved() const { return reserved_; }  // the pages that size() takes
  Device device() const { return device_; }

  // Copies between the host and the storage: its first bytes, or those from an offset.
  virtual void write(std::span<const std::byte> bytes);
  virtual void read(std::span<std::byte> bytes, Bytes offset = {}) const;
  // Whether the host can use data() itself.
  bool on_host() const;

  // The tier that the bytes are in, and where they are if it is not the device's own memory.
  virtual Tier tier() const { return Tier::device; }
  virtual TierPart part() const { return {}; }

  // The resident part of the device's memory; everything on a GPU.
  virtual Bytes resident() const = 0;

 protected:
  Storage(Device device, Bytes limit, PageSize pages);
  PageSize pages() const { return pages_; }
  void set_data(std::byte* data) { data_ = data; }
  void set_size(Bytes size, Bytes reserved);

 private:
  Device device_;
  PageSize pages_;
  Bytes size_, reserved_, limit_;
  std::byte* data_ = nullptr;
};

Bytes live_bytes();  // reserved by all storages of the process now

}  // namespace ebb
