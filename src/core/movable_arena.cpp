#include "ebb/movable_arena.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "ebb/error.h"
#include "ebb/storage.h"

namespace ebb {
namespace {

Bytes padded(Bytes size) { return round_up(std::max(size, 1_B), buffer_alignment); }

Bytes page() { return Storage::reservation(1_B); }

Bytes machine_memory() { return sysconf(_SC_PHYS_PAGES) * page(); }

}  // namespace

// A block and the gap that follows it. Blocks form a list in address order, so gaps need no record
// of their own: freeing a block adds its bytes to the gap of the block before it, and neighbouring
// gaps merge by construction.
struct MovableArena::Allocation {
  // Of equal gaps the lower comes first.
  struct SmallerGap {
    using is_transparent = void;  // allows lookup by size alone
    bool operator()(const Allocation* a, const Allocation* b) const {
      return std::pair(a->gap, a->offset) < std::pair(b->gap, b->offset);
    }
    bool operator()(const Allocation* a, Bytes size) const { return a->gap < size; }
    bool operator()(Bytes size, const Allocation* a) const { return size < a->gap; }
  };
  using Gaps = std::set<Allocation*, SmallerGap>;

  Allocation() {
    Gaps one{this};
    node = one.extract(one.begin());
  }
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  Bytes end() const { return offset + size; }

  std::shared_ptr<State> state;  // null in the arena's own first one
  Bytes offset, size, gap;
  int pins = 0;
  Allocation *previous = nullptr, *next = nullptr;
  Gaps::node_type node;  // kept while it is not in the set, so that freeing, which destructors
                         // do, allocates nothing
};

struct MovableArena::State {
  State(Device device, const Options& wanted) : options(wanted) {
    limit = options.limit.value_or(machine_memory());
    limit.count -= limit.count % page().count;
    storage = Storage::growable(device, limit);
    resize(std::min(options.initial, limit));
  }

  Options options;
  Bytes limit;
  std::shared_ptr<Storage> storage;
  Allocation first;  // empty, at offset 0: the gap before the blocks is the one after it
  Allocation* last = &first;
  Allocation::Gaps gaps;   // all that are not empty
  Statistics counts;       // except free and largest_gap, which are computed from the rest
  std::int64_t frees = 0;  // since the last defragmentation
  Bytes stuck;             // bytes in gaps that pinned blocks kept open then

  Bytes free() const { return counts.capacity - counts.live; }
  Bytes largest_gap() const { return gaps.empty() ? 0_B : (*gaps.rbegin())->gap; }

  // The gap and offset of a block in the set must not change, since they order it.
  void leave_gaps(Allocation& block) {
    if (!block.node) block.node = gaps.extract(&block);
  }
  void enter_gaps(Allocation& block) {
    if (block.gap > 0_B) gaps.insert(std::move(block.node));  // no node: it is already in the set
  }
  void set_gap(Allocation& block, Bytes gap) {
    leave_gaps(block);
    block.gap = gap;
    enter_gaps(block);
  }

  // The block before the smallest gap of at least `size`; null when there is no such gap.
  Allocation* best_fit(Bytes size) const {
    const auto found = gaps.lower_bound(size);
    return found == gaps.end() ? nullptr : *found;
  }

  // The same, but defragments or grows if necessary.
  Allocation* make_room(Bytes size) {
    if (Allocation* found = best_fit(size)) return found;
    if (size > limit - counts.live) refuse(size);  // even without gaps
    if (size <= free() || size > limit - last->end()) {
      defragment();
      if (Allocation* found = best_fit(size)) return found;
    }
    if (size > limit - last->end()) refuse(size);  // pinned blocks are in the way
    grow_to(last->end() + size);
    return last;
  }

  void grow_to(Bytes least) {
    const double grown = std::min(options.growth * static_cast<double>(counts.capacity.count),
                                  static_cast<double>(limit.count));
    resize(std::max(least, Bytes{static_cast<std::int64_t>(grown)}));
  }

  // The gap after the last block absorbs the difference.
  void resize(Bytes capacity) {
    storage->resize(capacity);
    set_gap(*last, storage->reserved() - last->end());
    counts.capacity = storage->reserved();
  }

  [[noreturn]] void refuse(Bytes size) const {
    std::int64_t pinned = 0;
    for (const Allocation* block = first.next; block; block = block->next)
      pinned += block->pins > 0;
    throw MemoryError(fmt::format(
        "[MovableArena] cannot allocate {}: {} are free of the limit of {}, the largest gap has {}"
        " and {} of {} blocks are pinned",
        to_string(size), to_string(limit - counts.live), to_string(limit),
        to_string(std::max(largest_gap(), limit - last->end())), pinned, counts.blocks));
  }

  // Puts a block at the start of a gap.
  void place(Allocation& block, Allocation& before, Bytes size) {
    block.offset = before.end();
    block.size = size;
    const Bytes rest = before.gap - size;
    set_gap(before, 0_B);
    set_gap(block, rest);
    block.previous = &before;
    block.next = before.next;
    before.next = &block;
    (block.next ? block.next->previous : last) = &block;

    counts.live += size;
    counts.high_water = std::max(counts.high_water, counts.live);
    ++counts.blocks;
    ++counts.allocations;
  }

  void release(Allocation& block) {
    Allocation& before = *block.previous;
    leave_gaps(block);
    set_gap(before, before.gap + block.size + block.gap);
    before.next = block.next;
    (block.next ? block.next->previous : last) = &before;

    counts.live -= block.size;
    --counts.blocks;
    ++frees;
    if (defragmentation_is_due()) defragment();
  }

  bool defragmentation_is_due() const {
    if (options.defragment_every && frees >= *options.defragment_every) return true;
    // Gaps that pins keep open cannot be closed until a pin is released.
    const Bytes below_last = last->end(), wasted = below_last - counts.live - stuck;
    return options.defragment_above && wasted > 0_B &&
           static_cast<double>(wasted.count) >
               *options.defragment_above * static_cast<double>(below_last.count);
  }

  Bytes defragment() {
    Bytes moved;
    for (Allocation* block = &first; block; block = block->next) {
      Allocation* const next = block->next;
      if (block->gap == 0_B || !next || next->pins > 0) {
        enter_gaps(*block);  // it has its final place, and so has its gap
        continue;
      }
      leave_gaps(*block);
      leave_gaps(*next);
      std::byte* const from = storage->data() + next->offset.count;
      std::memmove(from - block->gap.count, from, static_cast<std::size_t>(next->size.count));
      moved += next->size;
      next->offset -= block->gap;
      next->gap += block->gap;
      block->gap = 0_B;
    }
    frees = 0;
    stuck = last->end() - counts.live;
    ++counts.defragmentations;
    counts.moved += moved;
    return moved;
  }
};

MovableArena::Allocation::~Allocation() {
  if (state) state->release(*this);
}

double MovableArena::Statistics::fragmentation() const {
  return free > 0_B ? 1.0 - static_cast<double>(largest_gap.count) / static_cast<double>(free.count)
                    : 0.0;
}

MovableArena::MovableArena(Device device, const Options& options) {
  const auto require = [](bool holds, const char* what, auto value) {
    if (!holds) throw ValueError(fmt::format("[MovableArena] {}, but is {}", what, value));
  };
  if (options.limit)
    require(*options.limit >= page(), "limit must be a page or more", to_string(*options.limit));
  require(options.initial >= 0_B && options.initial <= options.limit.value_or(machine_memory()),
          "initial must lie between 0 B and the limit", to_string(options.initial));
  require(std::isfinite(options.growth) && options.growth >= 1.0, "growth must be 1 or more",
          options.growth);
  if (const auto frees = options.defragment_every)
    require(*frees >= 1, "defragment_every must be 1 or more", *frees);
  if (const auto share = options.defragment_above)
    require(*share >= 0.0 && *share < 1.0, "defragment_above must lie in [0, 1)", *share);
  state_ = std::make_shared<State>(device, options);
}

MovableArena::~MovableArena() = default;

MovableArena::Block MovableArena::allocate(Bytes size) {
  if (size < 0_B)
    throw ValueError(
        fmt::format("[MovableArena] a block must have 0 B or more, but has {}", to_string(size)));
  if (size > state_->limit) state_->refuse(size);
  const Bytes whole = padded(size);
  Allocation& before = *state_->make_room(whole);
  auto allocation = std::make_shared<Allocation>();
  state_->place(*allocation, before, whole);
  allocation->state = state_;
  return {std::move(allocation), 0_B, size};
}

Bytes MovableArena::defragment() { return state_->defragment(); }

Bytes MovableArena::trim() {
  const Bytes before = state_->counts.capacity;
  state_->resize(state_->last->end());
  return before - state_->counts.capacity;
}

MovableArena::Statistics MovableArena::statistics() const {
  Statistics result = state_->counts;
  result.free = state_->free();
  result.largest_gap = state_->largest_gap();
  return result;
}

MovableArena::Block::Block(std::shared_ptr<Allocation> allocation, Bytes offset, Bytes size)
    : allocation_(std::move(allocation)), offset_(offset), size_(size) {}

std::byte* MovableArena::Block::data() const {
  if (!allocation_) return nullptr;
  return allocation_->state->storage->data() + (allocation_->offset + offset_).count;
}

MovableArena::Block MovableArena::Block::narrow(Bytes offset, Bytes size) const {
  if (offset < 0_B || size < 0_B || offset > this->size() || size > this->size() - offset)
    throw ValueError(fmt::format("[narrow] {} B from byte {} do not lie in a block of {} B",
                                 size.count, offset.count, this->size().count));
  return {allocation_, offset_ + offset, size};
}

MovableArena::Pin MovableArena::Block::pin() const {
  if (!allocation_) throw ValueError("[pin] the handle is empty");
  return Pin(narrow(0_B, size_));
}

MovableArena::Pin::Pin(Block block) : block_(std::move(block)) { ++block_.allocation_->pins; }

MovableArena::Pin& MovableArena::Pin::operator=(Pin&& other) noexcept {
  Pin taken(std::move(other));  // releases the old pin at the end
  std::swap(block_, taken.block_);
  return *this;
}

MovableArena::Pin::~Pin() {
  if (!block_ || --block_.allocation_->pins > 0) return;
  block_.allocation_->state->stuck = 0_B;
}

}  // namespace ebb
