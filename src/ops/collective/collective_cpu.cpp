#include <fmt/core.h>

#include <array>
#include <cstring>
#include <memory>

#include "core/parallel.h"
#include "ebb/communicator.h"
#include "ebb/error.h"
#include "ops/collective/collective.h"
#include "ops/collective/pieces.h"
#include "ops/dispatch.h"

namespace ebb {
namespace {

constexpr std::int64_t tile = 512;  // elements that are added at a time, in the first-level cache

// A sum of tensors in the order of the tree, tile by tile.
template <class T>
class TreeSum {
 public:
  // Writes the sum of sources[lo] to sources[hi - 1], `count` elements from `at`, to `out`.
  static void add(const T* const* sources, std::int64_t lo, std::int64_t hi, std::int64_t at,
                  std::int64_t count, T* out) {
    if (hi - lo == 1) {
      std::memcpy(out, sources[lo] + at, static_cast<std::size_t>(count) * sizeof(T));
      return;
    }
    const std::int64_t middle = lo + tree_split(hi - lo);
    add(sources, lo, middle, at, count, out);
    std::array<T, tile> right;
    add(sources, middle, hi, at, count, right.data());
    // Rounded after every addition, as the op `add` does.
    for (std::int64_t i = 0; i < count; ++i)
      out[i] = static_cast<T>(static_cast<Compute<T>>(out[i]) +
                              static_cast<Compute<T>>(right[static_cast<std::size_t>(i)]));
  }

  // Writes the sum of `count` elements of each source to `out`, which may be one of the sources.
  static void run(const std::vector<const T*>& sources, std::int64_t count, T* out) {
    const std::int64_t tiles = (count + tile - 1) / tile;
    parallel_for(tiles, 32, [&](std::int64_t begin, std::int64_t end) {
      std::array<T, tile> sum;
      for (std::int64_t t = begin; t < end; ++t) {
        const std::int64_t size = std::min(tile, count - t * tile);
        add(sources.data(), 0, static_cast<std::int64_t>(sources.size()), t * tile, size,
            sum.data());
        std::memcpy(out + t * tile, sum.data(), static_cast<std::size_t>(size) * sizeof(T));
      }
    });
  }
};

// A call of one rank. Its lists are made once, so that runs allocate nothing.
class Call {
 public:
  Call(const KernelRequest& request, const CollectiveAttributes& a, Communicator* communicator,
       const std::string& path)
      : communicator_(communicator),
        rank_(communicator ? communicator->rank() : 0),
        ranks_(a.ranks),
        name_(path.empty() ? std::string(request.op.name())
                           : fmt::format("{} at \"{}\"", request.op.name(), path)),
        send_(static_cast<std::size_t>(a.ranks)),
        receive_(static_cast<std::size_t>(a.ranks)) {}

 protected:
  void exchange() {
    if (communicator_) communicator_->exchange(send_, receive_, name_);
  }
  std::span<const std::byte>& send(std::int64_t r) { return send_[static_cast<std::size_t>(r)]; }
  std::span<std::byte>& receive(std::int64_t r) { return receive_[static_cast<std::size_t>(r)]; }

  Communicator* communicator_;
  std::int64_t rank_, ranks_;
  std::string name_;

 private:
  std::vector<std::span<const std::byte>> send_;
  std::vector<std::span<std::byte>> receive_;
};

// Every rank gets the sum of its range; for all_reduce it then gets the ranges of the others.
template <class T>
class RangeReduction : public Call {
 public:
  RangeReduction(const KernelRequest& request, const CollectiveAttributes& a,
                 Communicator* communicator, const std::string& path, bool whole)
      : Call(request, a, communicator, path),
        ranges_{request.in(0).shape().elements(), a.ranks,
                range_elements(request.in(0).shape().elements(), a.ranks)},
        slots_(static_cast<std::int64_t>(request.inputs.size())),
        first_(a.first),
        blocks_(a.blocks),
        pieces_(
            pieces_of(ranges_.range, a.ranks, slots_, request.in(0).dtype(), Device::Kind::cpu)),
        whole_(whole),
        sources_(static_cast<std::size_t>(a.blocks)) {}

  Bytes workspace() const {
    return ranks_ > 1 ? slots_ * ranks_ * pieces_.elements * Bytes{sizeof(T)} : Bytes{};
  }

  void run(const KernelArgs& args) {
    // The result holds the whole sum, in which this rank's range has its place, or only this range.
    T* const own = args.out<T>() + (whole_ ? ranges_.begin(rank_) : 0);
    for (std::int64_t p = 0; p < pieces_.count; ++p) reduce_piece(args, p * pieces_.elements, own);
    const std::int64_t size = ranges_.size(rank_);
    if (!whole_) {
      std::fill(own + size, own + ranges_.range, T(0.0f));
      return;
    }
    if (ranks_ == 1) return;
    for (std::int64_t r = 0; r < ranks_; ++r) {
      send(r) = std::as_bytes(std::span(own, static_cast<std::size_t>(size)));
      receive(r) = std::as_writable_bytes(
          std::span(args.out<T>() + ranges_.begin(r), static_cast<std::size_t>(ranges_.size(r))));
    }
    exchange();
  }

 private:
  // Whether the block with this number, counted from the first that counts, is part of the sum.
  bool is_summed(std::int64_t number) const { return number >= 0 && number < blocks_; }

  std::int64_t size_at(std::int64_t rank, std::int64_t at) const {
    return std::clamp<std::int64_t>(ranges_.size(rank) - at, 0, pieces_.elements);
  }

  void reduce_piece(const KernelArgs& args, std::int64_t at, T* own) {
    const std::int64_t size = size_at(rank_, at);
    for (std::int64_t slot = 0; slot < slots_; ++slot) {
      const T* const block = args.in<T>(static_cast<int>(slot));
      for (std::int64_t r = 0; r < ranks_; ++r) {
        T* const place = args.scratch<T>() + (slot * ranks_ + r) * pieces_.elements;
        const std::int64_t number = r * slots_ + slot - first_;  // of the block that is received
        const bool counts = is_summed(number),
                   own_counts = is_summed(rank_ * slots_ + slot - first_);
        const std::int64_t sent = own_counts ? size_at(r, at) : 0, expected = counts ? size : 0;
        send(r) = std::as_bytes(
            std::span(block + ranges_.begin(r) + at * (sent > 0), static_cast<std::size_t>(sent)));
        receive(r) = std::as_writable_bytes(std::span(place, static_cast<std::size_t>(expected)));
        if (counts)
          sources_[static_cast<std::size_t>(number)] =
              r == rank_ ? block + ranges_.begin(rank_) + at : place;
      }
      exchange();
    }
    if (size > 0) TreeSum<T>::run(sources_, size, own + at);
  }

  Ranges ranges_;
  std::int64_t slots_, first_, blocks_;
  Pieces pieces_;
  bool whole_;
  std::vector<const T*> sources_;  // by block
};

// Gathers ranges, or other equal parts, of all ranks, one after another; the end may be cut off.
class Gathering : public Call {
 public:
  Gathering(const KernelRequest& request, const CollectiveAttributes& a, Communicator* communicator,
            const std::string& path)
      : Call(request, a, communicator, path),
        ranges_{request.out().type.bytes().count, a.ranks, request.in(0).type.bytes().count} {}

  void run(const KernelArgs& args) {
    const std::size_t own = static_cast<std::size_t>(ranges_.size(rank_));
    std::byte* const all = args.out<std::byte>();
    if (own > 0) std::memcpy(all + ranges_.begin(rank_), args.in<std::byte>(0), own);
    if (ranks_ == 1) return;
    for (std::int64_t r = 0; r < ranks_; ++r) {
      send(r) = {args.in<std::byte>(0), own};
      receive(r) = {all + ranges_.begin(r), static_cast<std::size_t>(ranges_.size(r))};
    }
    exchange();
  }

 private:
  Ranges ranges_;  // in bytes
};

}  // namespace

Kernel bind_collective(const KernelRequest& request, const CollectiveAttributes& a,
                       Communicator* communicator, const std::string& path) {
  const Op& op = request.op;
  if (request.target.purpose == Purpose::run)
    require_ranks(op, a, communicator ? communicator->size() : 0);
  if (a.reduce == Reduce::fast && a.ranks > 1)
    throw ValueError(
        fmt::format("[{}] sums in NCCL's order run on GPUs alone; on the CPU all sums have the "
                    "order of the tree",
                    op.name()));
  if (&op == &own_range_op()) {
    const Ranges ranges{request.in(0).type.bytes().count, a.ranks,
                        request.out().type.bytes().count};
    const std::int64_t rank = communicator ? communicator->rank() : 0;
    return {.run = [=](const KernelArgs& args) {
      const std::size_t own = static_cast<std::size_t>(ranges.size(rank)),
                        all = static_cast<std::size_t>(ranges.range);
      if (own > 0)
        std::memcpy(args.out<std::byte>(), args.in<std::byte>(0) + ranges.begin(rank), own);
      std::memset(args.out<std::byte>() + own, 0, all - own);
    }};
  }
  if (&op == &all_gather_op()) {
    const auto call = std::make_shared<Gathering>(request, a, communicator, path);
    return {.run = [call](const KernelArgs& args) { call->run(args); }};
  }
  return dispatch_floating(request, request.in(0).dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto call = std::make_shared<RangeReduction<T>>(request, a, communicator, path,
                                                          &op == &all_reduce_op());
    return Kernel{.run = [call](const KernelArgs& args) { call->run(args); },
                  .workspace = call->workspace()};
  });
}

}  // namespace ebb
