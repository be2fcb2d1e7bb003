#include "core/tier_block.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "core/backend.h"
#include "core/cuda/cuda.h"
#include "core/host_storage.h"
#include "core/unnamed_file.h"
#include "ebb/error.h"

namespace ebb {
namespace {

std::size_t count(Bytes size) { return static_cast<std::size_t>(size.count); }

// Memory of the host that a device copies to and from by itself. One mapping, registered once:
// the driver's own allocations round sizes up.
class PinnedBlock final : public TierBlock {
 public:
  PinnedBlock(Device device, Bytes size)
      : TierBlock(Tier::host, size),
        device_(device),
        memory_(size, PageSize::standard, HostStorage::Memory::at_once) {
    memory_.populate();
    cuda::pin(device, memory_.data(), memory_.reserved());
  }
  ~PinnedBlock() override { cuda::unpin(device_, memory_.data()); }

  std::byte* data() const override { return memory_.data(); }
  Bytes held() const override { return memory_.resident(); }

  void write(Bytes offset, std::span<const std::byte> bytes) override {
    cuda::synchronise(device_);
    std::memcpy(memory_.data() + offset.count, bytes.data(), bytes.size());
  }
  void read(Bytes offset, std::span<std::byte> bytes) override {
    cuda::synchronise(device_);
    std::memcpy(bytes.data(), memory_.data() + offset.count, bytes.size());
  }

 private:
  Device device_;
  HostStorage memory_;
};

// Copies of other sizes than whole pages go through a buffer.
class FileBlock final : public TierBlock {
 public:
  FileBlock(Bytes size, const std::filesystem::path& folder)
      : TierBlock(Tier::disk, size), file_(folder, size) {}

  OffloadFile* file() const override { return &file_; }
  Bytes held() const override { return allocated_bytes(file_.descriptor()); }

  void write(Bytes offset, std::span<const std::byte> bytes) override {
    file_.wait_all();
    HostStorage buffer = make_buffer();
    for (std::size_t at = 0; at < bytes.size(); at += count(buffer.size())) {
      const auto part = bytes.subspan(at, std::min(bytes.size() - at, count(buffer.size())));
      const std::size_t whole = padded(part.size());
      // The rest of the last page belongs to the same part of the block.
      std::memset(buffer.data() + whole - count(page), 0, count(page));
      std::memcpy(buffer.data(), part.data(), part.size());
      file_.wait(
          file_.write({buffer.data(), whole}, offset + Bytes{static_cast<std::int64_t>(at)}));
    }
  }

  void read(Bytes offset, std::span<std::byte> bytes) override {
    file_.wait_all();
    const HostStorage buffer = make_buffer();
    for (std::size_t at = 0; at < bytes.size(); at += count(buffer.size())) {
      const auto part = bytes.subspan(at, std::min(bytes.size() - at, count(buffer.size())));
      file_.wait(file_.read({buffer.data(), padded(part.size())},
                            offset + Bytes{static_cast<std::int64_t>(at)}));
      std::memcpy(part.data(), buffer.data(), part.size());
    }
  }

 private:
  static constexpr Bytes page = 4_KiB;
  static std::size_t padded(std::size_t size) {
    return count(round_up({static_cast<std::int64_t>(size)}, page));
  }
  static HostStorage make_buffer() {
    return {4_MiB, PageSize::standard, HostStorage::Memory::at_once};
  }

  mutable OffloadFile file_;
};

class PartStorage final : public Storage {
 public:
  PartStorage(std::shared_ptr<TierBlock> block, Device device, Bytes offset, Bytes size)
      : Storage(device, size, PageSize::standard), block_(std::move(block)), offset_(offset) {
    if (block_->data()) set_data(block_->data() + offset.count);
    set_size(size, {});  // takes no memory of the device
  }

  void resize(Bytes) override { throw MemoryError("a variable outside the device has one size"); }
  void populate() override {}
  Bytes resident() const override { return {}; }
  Tier tier() const override { return block_->tier(); }
  TierPart part() const override { return {block_.get(), offset_}; }
  void write(std::span<const std::byte> bytes) override { block_->write(offset_, bytes); }
  void read(std::span<std::byte> bytes, Bytes offset) const override {
    block_->read(offset_ + offset, bytes);
  }

 private:
  std::shared_ptr<TierBlock> block_;
  Bytes offset_;
};

}  // namespace

std::shared_ptr<TierBlock> TierBlock::allocate(Tier tier, Device device, Bytes size,
                                               const std::filesystem::path& folder) {
  if (tier != backend_of(device).second_tier())
    throw ValueError(
        fmt::format("tensors of {} cannot be moved to the tier {}", to_string(device), name(tier)));
  switch (tier) {
    case Tier::host:
      return std::make_shared<PinnedBlock>(device, size);
    case Tier::disk:
      return std::make_shared<FileBlock>(size, folder);
    case Tier::device:
      break;
  }
  return nullptr;  // not reached: no device is its own second tier
}

std::shared_ptr<Storage> part_of(std::shared_ptr<TierBlock> block, Device device, Bytes offset,
                                 Bytes size) {
  return std::make_shared<PartStorage>(std::move(block), device, offset, size);
}

}  // namespace ebb
