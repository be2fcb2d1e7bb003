// Bytes in a tier of memory other than the device's own: pinned memory of the host, or a file.
#pragma once

#include <filesystem>
#include <memory>
#include <span>

#include "core/offload_file.h"
#include "ebb/bytes.h"
#include "ebb/device.h"
#include "ebb/storage.h"
#include "ebb/tier.h"

namespace ebb {

// One allocation that several variables, or the buffers of a step, share. Offsets are multiples of
// 4 KiB.
class TierBlock {
 public:
  // For `device`, which copies to the block and from it. `folder` is for files.
  static std::shared_ptr<TierBlock> allocate(Tier tier, Device device, Bytes size,
                                             const std::filesystem::path& folder);
  virtual ~TierBlock() = default;
  TierBlock(const TierBlock&) = delete;
  TierBlock& operator=(const TierBlock&) = delete;

  Tier tier() const { return tier_; }
  Bytes size() const { return size_; }
  virtual std::byte* data() const { return nullptr; }    // an address, if the block has one
  virtual OffloadFile* file() const { return nullptr; }  // the file, if it is one
  virtual Bytes held() const = 0;                        // as the operating system counts

  // Copies to and from memory of the host, after all copies that have been started.
  virtual void write(Bytes offset, std::span<const std::byte> bytes) = 0;
  virtual void read(Bytes offset, std::span<std::byte> bytes) = 0;

 protected:
  TierBlock(Tier tier, Bytes size) : tier_(tier), size_(size) {}

 private:
  Tier tier_;
  Bytes size_;
};

// The memory of a variable of `device` that is part of a block.
std::shared_ptr<Storage> part_of(std::shared_ptr<TierBlock> block, Device device, Bytes offset,
                                 Bytes size);

}  // namespace ebb
