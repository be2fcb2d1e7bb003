// Memory for what has no plan: one buffer that grows up to a limit, with blocks that may move.
//
// A plan knows every lifetime beforehand and leaves no gaps. Without one, freed blocks leave gaps
// that are too small for the next block, and memory runs out while much of it is free. Blocks that
// may move make room again: the arena slides them together, and nobody notices, as everyone reaches
// a block through a handle.
//
//   MovableArena arena(device::cpu, {.limit = 1_GiB});
//   auto block = arena.allocate(3_MiB);
//   std::memset(block.data(), 0, 100);    // the address holds until the arena is used again
//   const auto pin = block.pin();
//   auto other = arena.allocate(1_GiB - 4_MiB);
//   std::memset(pin.data(), 0, 100);      // pinned: the address of `block` has stayed
//
// Growing takes pages of address space that was set aside, so it moves nothing. An arena and its
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
    double growth = 1.5;  // an arena that must grow takes so many times what it had, or more
    // When to defragment besides when an allocation needs it; never where none is given.
    std::optional<std::int64_t> defragment_every = {};  // so many frees
    // A share of the bytes up to the last block's end: a free that leaves more of them in gaps, not
    // counting those that pins keep open.
    std::optional<double> defragment_above = {};
  };

  // Sizes are of whole blocks: multiples of buffer_alignment. capacity = live + free.
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
    // Where it lies now. A pin keeps it there; else any call that allocates, frees or defragments
    // may move it. A whole block is aligned to buffer_alignment. What a new block holds is
    // undefined.
    std::byte* data() const;

    // A part of this range, on the same block. Throws ValueError where it sticks out.
    Block narrow(Bytes offset, Bytes size) const;
    Pin pin() const;

   private:
    friend class MovableArena;
    Block(std::shared_ptr<Allocation> allocation, Bytes offset, Bytes size);

    std::shared_ptr<Allocation> allocation_;
    Bytes offset_, size_;
  };

  // While one lives, its block stays where it is. It is a handle on the block too.
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

  // Takes the smallest gap that is large enough; where there is none, defragments if that can make
  // one, and else grows. Throws MemoryError past the limit.
  Block allocate(Bytes size);
  // Slides blocks down over gaps, in their order, up to and between pinned ones. Gives the bytes
  // moved.
  Bytes defragment();
  // Gives the whole pages after the last block back to the operating system, and says how much.
  Bytes trim();

  Statistics statistics() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace ebb
