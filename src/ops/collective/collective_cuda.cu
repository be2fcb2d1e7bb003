// Collectives between GPUs. By default NCCL only moves bytes, and a kernel adds them in the order
// of the tree, so that the number of ranks changes no bit; `Reduce::fast` leaves the additions to
// NCCL.
#include <memory>

#include "core/cuda/rank_link.h"
#include "ebb/error.h"
#include "ops/collective/collective.h"
#include "ops/collective/pieces.h"
#include "ops/cuda/element.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/dispatch.h"

namespace ebb {
namespace {

using cuda::RankLink;

constexpr std::int64_t most_own =
    256;  // blocks of a rank: their addresses are a kernel's arguments

// The places of a sum's blocks: this rank's own, and the received ones, block `slot` of rank r at
// (slot · ranks + r) · stride. The sum begins at block `first`.
template <class T>
struct Blocks {
  const T* received;
  std::int64_t stride, ranks, slots, rank, first;
  const T* own[most_own];

  __device__ const T* operator[](std::int64_t number) const {
    const std::int64_t r = (first + number) / slots, slot = (first + number) % slots;
    return r == rank ? own[slot] : received + (slot * ranks + r) * stride;
  }
};

// The elements in 16 bytes, or fewer at the end.
template <class T>
__device__ void load(const T* from, std::int64_t at, std::int64_t count, bool packs,
                     Compute<T> (&to)[cuda::pack<T>]) {
  if (packs && at + cuda::pack<T> <= count) return cuda::load_pack(from + at, to);
  for (int i = 0; i < cuda::pack<T>; ++i)
    to[i] = at + i < count ? cuda::widen(from[at + i]) : Compute<T>(0);
}

// Rounded after every addition, as the op `add` does.
template <class T>
__device__ void add_to(Compute<T> (&sum)[cuda::pack<T>], const Compute<T> (&other)[cuda::pack<T>]) {
#pragma unroll
  for (int i = 0; i < cuda::pack<T>; ++i) sum[i] = cuda::widen(cuda::narrow<T>(sum[i] + other[i]));
}

constexpr int split_of(int n) {
  int p = 1;
  while (2 * p < n) p *= 2;
  return p;
}

// The sum of blocks from `lo` up to `hi`, all in registers.
template <class T, int lo, int hi>
__device__ void add_few(const Blocks<T>& blocks, std::int64_t at, std::int64_t count, bool packs,
                        Compute<T> (&sum)[cuda::pack<T>]) {
  if constexpr (hi - lo == 1) {
    load(blocks[lo], at, count, packs, sum);
  } else {
    constexpr int middle = lo + split_of(hi - lo);
    add_few<T, lo, middle>(blocks, at, count, packs, sum);
    Compute<T> right[cuda::pack<T>];
    add_few<T, middle, hi>(blocks, at, count, packs, right);
    add_to<T>(sum, right);
  }
}

// The same for any number of blocks: sums of equal numbers of blocks are added at once, and the
// remaining ones from the end, which is the order of the tree.
template <class T>
__device__ void add_many(const Blocks<T>& blocks, std::int64_t number, std::int64_t at,
                         std::int64_t count, bool packs, Compute<T> (&sum)[cuda::pack<T>]) {
  constexpr int depth = 32;  // for 2³¹ blocks
  Compute<T> open[depth][cuda::pack<T>];
  int top = 0;
  for (std::int64_t b = 0; b < number; ++b) {
    load(blocks[b], at, count, packs, open[top++]);
    for (std::int64_t pairs = b + 1; pairs % 2 == 0; pairs /= 2, --top)
      add_to<T>(open[top - 2], open[top - 1]);
  }
  for (; top > 1; --top) add_to<T>(open[top - 2], open[top - 1]);
  for (int i = 0; i < cuda::pack<T>; ++i) sum[i] = open[0][i];
}

// out[i] = the sum of element i of all blocks. `few` is their number, or 0 for any.
template <class T, int few>
__global__ void tree_sum(Blocks<T> blocks, std::int64_t number, std::int64_t count, bool packs,
                         T* out) {
  constexpr int size = cuda::pack<T>;
  cuda::for_items((count + size - 1) / size, [&](std::int64_t item) {
    const std::int64_t at = item * size;
    Compute<T> sum[size];
    if constexpr (few > 0)
      add_few<T, 0, few>(blocks, at, count, packs, sum);
    else
      add_many(blocks, number, at, count, packs, sum);
    if (packs && at + size <= count)
      cuda::store_pack(out + at, sum);
    else
      for (int i = 0; i < size && at + i < count; ++i) out[at + i] = cuda::narrow<T>(sum[i]);
  });
}

template <class T>
void launch_sum(const KernelArgs& args, const Blocks<T>& blocks, std::int64_t number,
                std::int64_t count, T* out) {
  bool packs = cuda::aligned_for_packs(blocks.received, out) &&
               blocks.stride * static_cast<std::int64_t>(sizeof(T)) % 16 == 0;
  for (std::int64_t slot = 0; slot < blocks.slots; ++slot)
    packs = packs && cuda::aligned_for_packs(blocks.own[slot]);
  const cuda::Launch launch{args, "tree_sum", cuda::item_grid(cuda::ceil_div(count, cuda::pack<T>)),
                            cuda::item_threads};
  void (*const kernels[])(Blocks<T>, std::int64_t, std::int64_t, bool, T*) = {
      tree_sum<T, 0>, tree_sum<T, 1>, tree_sum<T, 2>, tree_sum<T, 3>, tree_sum<T, 4>,
      tree_sum<T, 5>, tree_sum<T, 6>, tree_sum<T, 7>, tree_sum<T, 8>};
  cuda::launch(launch, kernels[number <= 8 ? number : 0], blocks, number, count, packs, out);
}

__global__ void note(std::int32_t* reached, std::int32_t instruction) {
  *reached = instruction;
  __threadfence_system();
}

// A call of one rank. Its lists are made once, so that runs allocate nothing.
class Call {
 public:
  Call(const CollectiveAttributes& a, std::shared_ptr<RankLink> link)
      : link_(std::move(link)), rank_(link_ ? link_->rank() : 0), ranks_(a.ranks) {}

 protected:
  // Records for the host which collective the device has reached, so that an error after a lost
  // rank can name it.
  void enter(const KernelArgs& args) const {
    cuda::launch({args, "note", 1, 1}, note, link_->reached(), args.instruction + 1);
  }

  // Every rank has range `rank_` of `all`, and gets the others.
  void gather(std::byte* all, const Ranges& ranges, Bytes element, const KernelArgs& args) {
    if (ranges.elements == 0) return;
    std::byte* const own = all + ranges.begin(rank_) * element.count;
    if (ranges.even()) return link_->all_gather(own, all, ranges.range * element, args.stream);
    send_.clear(), receive_.clear();
    for (std::int64_t r = 0; r < ranks_; ++r) {
      if (r == rank_) continue;
      send_.push_back({static_cast<int>(r), own, ranges.size(rank_) * element});
      receive_.push_back(
          {static_cast<int>(r), all + ranges.begin(r) * element.count, ranges.size(r) * element});
    }
    link_->exchange(send_, receive_, args.stream);
  }

  std::shared_ptr<RankLink> link_;
  std::int64_t rank_, ranks_;
  std::vector<cuda::SentBytes> send_;
  std::vector<cuda::ReceivedBytes> receive_;
};

// Every rank gets the sum of its range; for all_reduce it then gets the ranges of the others.
template <class T>
class RangeReduction : public Call {
 public:
  RangeReduction(const KernelRequest& request, const CollectiveAttributes& a,
                 std::shared_ptr<RankLink> link, bool whole)
      : Call(a, std::move(link)),
        ranges_{request.in(0).shape().elements(), a.ranks,
                range_elements(request.in(0).shape().elements(), a.ranks)},
        slots_(static_cast<std::int64_t>(request.inputs.size())),
        first_(a.first),
        blocks_(a.blocks),
        pieces_(
            pieces_of(ranges_.range, a.ranks, slots_, request.in(0).dtype(), Device::Kind::cuda)),
        whole_(whole),
        fast_(a.reduce == Reduce::fast && a.ranks > 1),
        dtype_(request.in(0).dtype()) {
    require_few_blocks(request.op, slots_, most_own);
    const std::size_t calls = static_cast<std::size_t>(slots_ * ranks_);
    send_.reserve(calls), receive_.reserve(calls);
    parts_.reserve(static_cast<std::size_t>(ranks_));
  }

  Bytes workspace() const {
    if (ranks_ == 1) return {};
    const Bytes row = ranks_ * pieces_.elements * Bytes{sizeof(T)};
    if (!fast_) return slots_ * row;
    return adds_first() && !whole_ ? row : Bytes{};
  }

  void run(const KernelArgs& args) {
    if (ranks_ > 1) enter(args);
    if (fast_) return whole_ ? reduce_all_fast(args) : scatter_fast(args);
    // The result holds the whole sum, in which this rank's range has its place, or only this range.
    T* const own = args.out<T>() + (whole_ ? ranges_.begin(rank_) : 0);
    for (std::int64_t p = 0; p < pieces_.count; ++p) reduce_piece(args, p * pieces_.elements, own);
    if (!whole_)
      fill_up(args, own);
    else if (ranks_ > 1)
      gather(args.out<std::byte>(), ranges_, Bytes{sizeof(T)}, args);
  }

 private:
  // Whether the block with this number is part of the sum.
  bool is_summed(std::int64_t number) const {
    return number >= first_ && number < first_ + blocks_;
  }

  std::int64_t size_at(std::int64_t rank, std::int64_t at) const {
    return std::clamp<std::int64_t>(ranges_.size(rank) - at, 0, pieces_.elements);
  }

  void fill_up(const KernelArgs& args, T* own) const {
    const std::int64_t size = ranges_.size(rank_);
    if (size == ranges_.range) return;
    EBB_CUDA_CHECK(cudaMemsetAsync(own + size, 0,
                                   static_cast<std::size_t>(ranges_.range - size) * sizeof(T),
                                   cuda::stream_of(args)));
  }

  // This rank's own blocks from element `at` on.
  Blocks<T> blocks_at(const KernelArgs& args, std::int64_t at) const {
    Blocks<T> blocks{args.scratch<T>(), pieces_.elements, ranks_, slots_, rank_, first_, {}};
    for (std::int64_t slot = 0; slot < slots_; ++slot)
      blocks.own[slot] = args.in<T>(static_cast<int>(slot)) + at;
    return blocks;
  }

  void reduce_piece(const KernelArgs& args, std::int64_t at, T* own) {
    const std::int64_t size = size_at(rank_, at);
    send_.clear(), receive_.clear();
    for (std::int64_t slot = 0; slot < slots_; ++slot) {
      const T* const block = args.in<T>(static_cast<int>(slot));
      const bool own_counts = is_summed(rank_ * slots_ + slot);
      for (std::int64_t r = 0; r < ranks_; ++r) {
        if (r == rank_) continue;
        T* const place = args.scratch<T>() + (slot * ranks_ + r) * pieces_.elements;
        const int other = static_cast<int>(r);
        if (const std::int64_t sent = size_at(r, at); own_counts && sent > 0)
          send_.push_back({other, reinterpret_cast<const std::byte*>(block + ranges_.begin(r) + at),
                           sent * Bytes{sizeof(T)}});
        if (is_summed(r * slots_ + slot) && size > 0)
          receive_.push_back({other, reinterpret_cast<std::byte*>(place), size * Bytes{sizeof(T)}});
      }
    }
    if (ranks_ > 1) link_->exchange(send_, receive_, args.stream);
    if (size > 0)
      launch_sum(args, blocks_at(args, ranges_.begin(rank_) + at), blocks_, size, own + at);
  }

  // --- NCCL's order

  // The number of this rank's blocks that count, the first of them, and whether any rank has a
  // number other than one.
  std::int64_t first_own() const {
    return std::clamp<std::int64_t>(first_ - rank_ * slots_, 0, slots_);
  }
  std::int64_t own_blocks() const {
    return std::clamp<std::int64_t>(first_ + blocks_ - rank_ * slots_, 0, slots_) - first_own();
  }
  bool adds_first() const { return slots_ > 1 || blocks_ < ranks_ * slots_; }

  // The sum of this rank's blocks, `count` elements from `at`.
  void add_own(const KernelArgs& args, std::int64_t at, std::int64_t count, T* out) const {
    if (count == 0) return;
    if (own_blocks() == 0) {
      EBB_CUDA_CHECK(cudaMemsetAsync(out, 0, static_cast<std::size_t>(count) * sizeof(T),
                                     cuda::stream_of(args)));
      return;
    }
    Blocks<T> blocks = blocks_at(args, at);
    blocks.ranks = 1, blocks.rank = 0, blocks.first = first_own(), blocks.received = nullptr;
    launch_sum(args, blocks, own_blocks(), count, out);
  }

  void reduce_all_fast(const KernelArgs& args) const {
    const std::byte* in = args.in<std::byte>(0);
    if (adds_first()) {
      add_own(args, 0, ranges_.elements, args.out<T>());
      in = args.out<std::byte>();
    }
    link_->all_reduce(in, args.out<std::byte>(), ranges_.elements, dtype_, args.stream);
  }

  void scatter_fast(const KernelArgs& args) {
    T* const own = args.out<T>();
    const std::int64_t step = adds_first() ? pieces_.elements : ranges_.range;
    for (std::int64_t at = 0; at < ranges_.range; at += step) {
      parts_.clear();
      for (std::int64_t r = 0; r < ranks_; ++r) {
        const std::int64_t begin = ranges_.begin(r) + at,
                           size = std::clamp<std::int64_t>(ranges_.size(r) - at, 0, step);
        if (size == 0) continue;
        const T* from = args.in<T>(0) + begin;
        if (adds_first()) {
          T* const place = args.scratch<T>() + r * pieces_.elements;
          add_own(args, begin, size, place);
          from = place;
        }
        parts_.push_back({static_cast<int>(r), reinterpret_cast<const std::byte*>(from),
                          reinterpret_cast<std::byte*>(own + at), size});
      }
      link_->reduce(parts_, dtype_, args.stream);
    }
    fill_up(args, own);
  }

  Ranges ranges_;
  std::int64_t slots_, first_, blocks_;
  Pieces pieces_;
  bool whole_, fast_;
  DType dtype_;
  std::vector<cuda::SummedPart> parts_;
};

// Gathers ranges, or other equal parts, of all ranks, one after another; the end may be cut off.
class Gathering : public Call {
 public:
  Gathering(const KernelRequest& request, const CollectiveAttributes& a,
            std::shared_ptr<RankLink> link)
      : Call(a, std::move(link)),
        ranges_{request.out().type.bytes().count, a.ranks, request.in(0).type.bytes().count} {
    send_.reserve(static_cast<std::size_t>(ranks_));
    receive_.reserve(static_cast<std::size_t>(ranks_));
  }

  void run(const KernelArgs& args) {
    if (ranks_ > 1) enter(args);
    if (const std::int64_t own = ranges_.size(rank_); own > 0)
      EBB_CUDA_CHECK(cudaMemcpyAsync(args.out<std::byte>() + ranges_.begin(rank_),
                                     args.in<std::byte>(0), static_cast<std::size_t>(own),
                                     cudaMemcpyDeviceToDevice, cuda::stream_of(args)));
    if (ranks_ > 1) gather(args.out<std::byte>(), ranges_, 1_B, args);
  }

 private:
  Ranges ranges_;  // in bytes
};

Kernel bind_own_range(const KernelRequest& request, const CollectiveAttributes& a,
                      std::int64_t rank) {
  const Ranges ranges{request.in(0).type.bytes().count, a.ranks, request.out().type.bytes().count};
  const std::size_t own = static_cast<std::size_t>(ranges.size(rank)),
                    all = static_cast<std::size_t>(ranges.range);
  const std::int64_t begin = ranges.begin(rank);
  return {.run = [=](const KernelArgs& args) {
    const cudaStream_t stream = cuda::stream_of(args);
    if (own > 0)
      EBB_CUDA_CHECK(cudaMemcpyAsync(args.out<std::byte>(), args.in<std::byte>(0) + begin, own,
                                     cudaMemcpyDeviceToDevice, stream));
    if (all > own)
      EBB_CUDA_CHECK(cudaMemsetAsync(args.out<std::byte>() + own, 0, all - own, stream));
  }};
}

}  // namespace

Kernel bind_collective_cuda(const KernelRequest& request, const CollectiveAttributes& a,
                            const std::shared_ptr<RankLink>& link) {
  const Op& op = request.op;
  if (request.target.purpose == Purpose::run) require_ranks(op, a, link ? link->size() : 0);
  if (&op == &own_range_op()) return bind_own_range(request, a, link ? link->rank() : 0);
  if (&op == &all_gather_op()) {
    const auto call = std::make_shared<Gathering>(request, a, link);
    return {.run = [call](const KernelArgs& args) { call->run(args); }};
  }
  return dispatch_floating(request, request.in(0).dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto call =
        std::make_shared<RangeReduction<T>>(request, a, link, &op == &all_reduce_op());
    return Kernel{.run = [call](const KernelArgs& args) { call->run(args); },
                  .workspace = call->workspace()};
  });
}

Kernel bind_collective_alone_cuda(const KernelRequest& request, const CollectiveAttributes& a) {
  return bind_collective_cuda(request, a, nullptr);
}

}  // namespace ebb
