// Memory for computations without a plan: one buffer that grows up to a limit, with movable blocks.
//
// A plan knows every live range in advance and avoids fragmentation. Without a plan, freed blocks
// leave gaps that may be too small for the next block, so that an allocation fails while much
// memory is free. Movable blocks solve this: the arena compacts them, and users access them through
// handles.
//
//   MovableArena arena(device::cpu, {.limit = 1_GiB});
//   auto block = arena.allocate(3_MiB);
//   std::memset(block.data(), 0, 100);    // the address holds until the arena is used again
//   const auto pin = block.pin();
//   auto other = arena.allocate(1_GiB - 4_MiB);
//   std::memset(pin.data(), 0, 100);      // pinned: the address of `block` has stayed
//
// Growing uses address space that was reserved in advance, so it moves nothing. An arena and its
// handles belong to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "ebb/bytes.h"
#include "ebb/device.h"

namespace ebb {

class MovableArena {
  struct Allocation;
  struct State;

 public:
  struct Options {
    Bytes initial = {};               // taken at once
    std::optional<Bytes> limit = {};  // never exceeded; the machine's memory where none is given
    double growth = 1.5;              // least factor by which an arena grows
    // When to defragment in addition to allocations that need it; empty: never.
    std::optional<std::int64_t> defragment_every = {};  // after this many frees
    // After a free that leaves more than this share of the bytes up to the last block's end in
    // gaps, except gaps that pins keep open.
    std::optional<double> defragment_above = {};
  };

  // Sizes count whole blocks, in multiples of buffer_alignment. capacity = live + free.
  struct Statistics {
    Bytes capacity;           // taken from the operating system
    Bytes live, free;         // in blocks, and in the gaps between and after them
    Bytes largest_gap;        // the largest block that fits without moving or growing
    Bytes high_water;         // the most that was live
    std::int64_t blocks = 0;  // live
    std::int64_t allocations = 0, defragmentations = 0;  // since the beginning
    Bytes moved;                                         // by all defragmentations

    // The share of the free bytes that lies outside the largest gap.
    double fragmentation() const;
  };

  class Pin;

  // A range of an allocated block. The block is freed when its last handle goes: Blocks and Pins,
  // which may outlive the arena. A default-made or moved-from handle is empty.
  class Block {
   public:
    Block() = default;
    Block(Block&&) noexcept = default;
    Block& operator=(Block&&) noexcept = default;

    explicit operator bool() const { return allocation_ != nullptr; }
    Bytes size() const { return allocation_ ? size_ : 0_B; }
    // The current address. Without a pin, any call that allocates, frees or defragments may change
    // it. A whole block is aligned to buffer_alignment. The contents of a new block are undefined.
    std::byte* data() const;

    // A part of this range, on the same block. Throws ValueError if it exceeds the range.
    Block narrow(Bytes offset, Bytes size) const;
    Pin pin() const;

   private:
    friend class MovableArena;
    Block(std::shared_ptr<Allocation> allocation, Bytes offset, Bytes size);

    std::shared_ptr<Allocation> allocation_;
    Bytes offset_, size_;
  };

  // While a pin exists, its block does not move. A pin is also a handle on the block.
  class Pin {
   public:
    Pin(Pin&&) noexcept = default;
    Pin& operator=(Pin&& other) noexcept;
    ~Pin();

    Bytes size() const { return block_.size(); }
    std::byte* data() const { return block_.data(); }

   private:
    friend class Block;
    explicit Pin(Block block);

    Block block_;
  };

  MovableArena(Device device, const Options& options);
  ~MovableArena();
  MovableArena(const MovableArena&) = delete;
  MovableArena& operator=(const MovableArena&) = delete;

  // Uses the smallest gap that is large enough. Without one, defragments if that creates one, and
  // otherwise grows. Throws MemoryError past the limit.
  Block allocate(Bytes size);
  // Moves blocks down over gaps, in their order, up to and between pinned ones. Returns the bytes
  // moved.
  Bytes defragment();
  // Returns the whole pages after the last block to the operating system; the result is their size.
  Bytes trim();

  Statistics statistics() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace ebb
