// Losses and gradients of rows of logits, which lie in blocks of classes.
//
// A row's sum of exponentials is computed in segments, one warp per segment, which are added in a
// fixed order. So a row has the same bits whether its logits exist all at once or one block at a
// time.
#pragma once

#include "ops/cross_entropy/cross_entropy.h"
#include "ops/cross_entropy/rows.cuh"
#include "ops/linear_cross_entropy/logit_tiles.cuh"

namespace ebb::cuda {

// exp(x - base). For half types the fast power of two is accurate enough: its error, including the
// rounding of its argument, is at most 1e-5.
template <class S>
struct ExponentialFrom {
  using T = Compute<S>;
  T base;

  __device__ explicit ExponentialFrom(T from)
      : base(sizeof(S) == 2 ? static_cast<T>(from * log2_e) : from) {}
  __device__ T operator()(T x) const {
    if constexpr (sizeof(S) == 2) {
      float power;
      asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(fmaf(x, log2_e, -base)));
      return power;
    } else {
      return exponential(x - base);
    }
  }

 private:
  static constexpr float log2_e = 1.4426950408889634f;
};

// As Larger, where the first is a number.
__device__ inline float larger(float a, float b) { return ::fmaxf(a, b); }
__device__ inline double larger(double a, double b) { return ::fmax(a, b); }

// --- Sums of a row

template <class T>
struct SegmentSums {
  T most, total, logits;  // the largest logit, Σ exp(x - most), Σ x
};

// Logits of a segment: two packs for each lane of a warp.
template <class S>
inline constexpr int segment_width = 2 * 32 * pack<S>;

// The segments of a row: those of the first block, then those of the next.
struct Segments {
  int in_block, in_last_block, count;

  template <class S>
  static Segments of(const Problem& p) {
    const auto in = [&](std::int64_t b) {
      return static_cast<int>(ceil_div(p.width_of(b), segment_width<S>));
    };
    const int blocks = static_cast<int>(p.blocks());
    return {in(0), in(blocks - 1), (blocks - 1) * in(0) + in(blocks - 1)};
  }
};

// Sums of `count` logits, called by a warp. Logits start at the address of a pack, and those that
// fill the last pack may be read. `whole`: the count is segment_width.
template <class S, bool whole>
__device__ SegmentSums<Compute<S>> sum_logits(const S* logits, int count, int lane,
                                              bool with_logits) {
  using T = Compute<S>;
  constexpr int width = pack<S>;
  T v[2][width];
  SegmentSums<T> sums{-infinity<T>(), T(0), T(0)};
  const auto each = [&](const auto& body) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int k = 0; k < width; ++k)
        if (whole || (i * 32 + lane) * width + k < count) body(v[i][k]);
  };
#pragma unroll
  for (int i = 0; i < 2; ++i)
    if (const int column = (i * 32 + lane) * width; whole || column < count)
      load_pack(logits + column, v[i]);
  each([&](T x) { sums.most = larger(sums.most, x); });
  sums.most = warp_join(sums.most, Larger{});
  // If all logits are -inf, their difference from the largest is undefined; their exponentials are
  // 0.
  const ExponentialFrom<S> from_most(sums.most == -infinity<T>() ? T(0) : sums.most);
  each([&](T x) { sums.total += from_most(x); });
  sums.total = warp_join(sums.total, Plus{});
  if (with_logits) {
    each([&](T x) { sums.logits += x; });
    sums.logits = warp_join(sums.logits, Plus{});
  }
  return sums;
}

template <class S>
__device__ SegmentSums<Compute<S>> sum_segment(const S* logits, int count, int lane,
                                               bool with_logits) {
  return count == segment_width<S> ? sum_logits<S, true>(logits, count, lane, with_logits)
                                   : sum_logits<S, false>(logits, count, lane, with_logits);
}

// The sums of a row from those of its segments, called by a warp.
template <class T>
__device__ LogitSums<T> join_segments(const SegmentSums<T>* parts, int count, int lane) {
  LogitSums<T> sums;
  for (int i = lane; i < count; i += 32) sums.most = Larger{}(sums.most, parts[i].most);
  sums.most = warp_join(sums.most, Larger{});
  for (int i = lane; i < count; i += 32) {
    const SegmentSums<T>& part = parts[i];
    if (part.total != T(0))
      sums.total += static_cast<double>(part.total * exponential(part.most - sums.most));
    sums.logits += static_cast<double>(part.logits);
  }
  sums.total = warp_join(sums.total, Plus{});
  sums.logits = warp_join(sums.logits, Plus{});
  return sums;
}

// The probabilities that a loss asks for: of the target and of every other class.
template <class T>
struct Expected {
  T at_target, each;

  explicit Expected(const Problem& p) {
    const double share = p.loss.label_smoothing / static_cast<double>(p.classes);
    at_target = static_cast<T>(1.0 - p.loss.label_smoothing + share);
    each = static_cast<T>(share);
  }
};

// g · (p - expected) of the logits of a row that counts.
template <class S>
struct RowGradient {
  using T = Compute<S>;
  ExponentialFrom<S> probability;
  T g;
  Expected<T> expected;

  __device__ RowGradient(T logsumexp, T grad, const Expected<T>& of)
      : probability(logsumexp), g(grad), expected(of) {}
  __device__ T at_target(T logit) const { return (probability(logit) - expected.at_target) * g; }
  __device__ T elsewhere(T logit) const { return (probability(logit) - expected.each) * g; }
};

// --- Rows whose logits come a block at a time

// State of a tile's rows between blocks.
template <class S>
struct RowParts {
  using T = Compute<S>;
  Segments segments;
  SegmentSums<T>* sums;  // (rows of the tile, segments.count)
  T* at_target;          // the logit of each row's target

  static Bytes add_sums(const Problem& p, WorkspaceAreas& areas) {
    return areas.add<SegmentSums<T>>(p.height * Segments::of<S>(p).count);
  }
};

template <class S>
struct SumTile {
  const S* logits;
  std::int64_t lead, first_row, first_class, width, rows;
  int first_segment, segments;  // of the block
  bool with_logits;             // sums of the logits themselves are needed
  Indices targets;
  RowParts<S> parts;
};

inline constexpr int warps_in_block = 8;

template <class S>
__global__ void __launch_bounds__(32 * warps_in_block) sum_tile_kernel(SumTile<S> tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t item =
      static_cast<std::int64_t>(blockIdx.x) * warps_in_block + threadIdx.x / 32;
  const std::int64_t row = item / tile.segments, segment = item % tile.segments;
  if (row >= tile.rows) return;
  const std::int64_t begin = segment * segment_width<S>;
  const int count =
      static_cast<int>(::min(static_cast<std::int64_t>(segment_width<S>), tile.width - begin));
  const S* logits = tile.logits + row * tile.lead;
  const auto sums = sum_segment(logits + begin, count, lane, tile.with_logits);
  if (lane != 0) return;
  tile.parts.sums[row * tile.parts.segments.count + tile.first_segment + segment] = sums;
  const std::int64_t target = tile.targets[tile.first_row + row] - tile.first_class;
  if (target >= begin && target < begin + count) tile.parts.at_target[row] = widen(logits[target]);
}

// The losses and logsumexps of a tile's rows, once all blocks are summed.
template <class S>
struct FinishRows {
  using T = Compute<S>;
  std::int64_t first_row, classes, rows;
  Indices targets;
  RowParts<S> parts;
  T *losses, *logsumexps;  // of all rows
  CrossEntropyAttributes a;
  FaultSlot fault;
};

template <class S>
__global__ void __launch_bounds__(32 * warps_in_block) finish_rows_kernel(FinishRows<S> f) {
  using T = Compute<S>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * warps_in_block + threadIdx.x / 32;
  if (r >= f.rows) return;
  const int count = f.parts.segments.count;
  const LogitSums<T> sums = join_segments(f.parts.sums + r * count, count, lane);
  if (lane != 0) return;
  const std::int64_t row = f.first_row + r, target = f.targets[row];
  f.logsumexps[row] = sums.logsumexp();
  const bool counts = row_counts(row, target, f.classes, f.a.ignore_index, f.fault);
  f.losses[row] = counts ? sums.loss(f.parts.at_target[r], f.a.label_smoothing, f.classes) : T(0);
}

// Logits of a tile become their gradients, in place; padding becomes zero.
template <class S>
struct DifferentiateTile {
  using T = Compute<S>;
  S* logits;
  std::int64_t lead, first_row, first_class, width, classes;
  Indices targets;
  const T *logsumexps, *grads;
  Expected<T> expected;
  std::int64_t ignore_index;
  FaultSlot fault;

  template <class, class Walk>
  __device__ void row(std::int64_t r, const Walk& walk) const {
    const std::int64_t row = first_row + r, target = targets[row];
    const bool counts = row_counts(row, target, classes, ignore_index, fault, walk.lane == 0);
    const RowGradient<S> gradient(logsumexps[row], grads[row], expected);
    const std::int64_t at_target = target - first_class;
    walk.slots([&](int, std::int64_t column) {
      T v[Walk::width];
      S* at = logits + r * lead + column;
      walk.load(at, v);
#pragma unroll
      for (int k = 0; k < Walk::width; ++k)
        v[k] = !counts || column + k >= width ? T(0)
               : column + k == at_target      ? gradient.at_target(v[k])
                                              : gradient.elsewhere(v[k]);
      walk.store(at, v);
    });
  }
};

// The kernels above for tiles of a problem.
template <class S>
struct TileRows {
  using T = Compute<S>;
  const Problem& p;
  const KernelArgs& args;
  Indices targets;

  TileRows(const Problem& problem, const KernelArgs& call)
      : p(problem), args(call), targets(call.inputs[2], problem.index) {}

  void sum(std::int64_t tile, std::int64_t b, const S* logits, const RowParts<S>& parts) const {
    const int count = b == p.blocks() - 1 ? parts.segments.in_last_block : parts.segments.in_block;
    const SumTile<S> work{logits,
                          p.lead,
                          tile * p.height,
                          b * p.block,
                          p.width_of(b),
                          p.height_of(tile),
                          static_cast<int>(b) * parts.segments.in_block,
                          count,
                          p.loss.label_smoothing != 0.0,
                          targets,
                          parts};
    start(sum_tile_kernel<S>, work, work.rows * count, "linear_cross_entropy");
  }
  void finish(std::int64_t tile, const RowParts<S>& parts, T* losses, T* logsumexps) const {
    const FinishRows<S> work{tile * p.height, p.classes, p.height_of(tile), targets, parts, losses,
                             logsumexps,      p.loss,    FaultSlot(args)};
    start(finish_rows_kernel<S>, work, work.rows, "linear_cross_entropy");
  }
  void differentiate(std::int64_t tile, std::int64_t b, S* logits, const T* logsumexps,
                     const T* grads) const {
    const DifferentiateTile<S> work{
        logits,  p.lead,     tile * p.height, b * p.block,    p.width_of(b),       p.classes,
        targets, logsumexps, grads,           Expected<T>(p), p.loss.ignore_index, FaultSlot(args)};
    launch_rows<S>(args, "linear_cross_entropy_grad", work,
                   RowShape({p.height_of(tile), p.whole_width(b)}), aligned_for_packs(logits));
  }

 private:
  template <class Work>
  void start(void (*kernel)(Work), const Work& work, std::int64_t warps, const char* name) const {
    launch({args, name, dim3(static_cast<unsigned>(ceil_div(warps, warps_in_block))),
            dim3(32 * warps_in_block)},
           kernel, work);
  }
};

// --- Rows whose logits are there all at once

// A row is in shared memory while its logits become their gradient: read once, written once.
template <class S>
struct LossRows {
  using T = Compute<S>;
  static constexpr int threads = 512, width = pack<S>;
  static constexpr std::int64_t most_bytes = 220 * 1024;  // of what a block may share

  S* logits;  // of the tile, block by block; become their gradient, and padding becomes zero
  int lead, block, classes;
  std::int64_t block_stride;  // from a row's logits in one block to those in the next
  Segments segments;
  std::int64_t first_row;  // its number among all rows
  Indices targets;
  const T* grads;
  T* losses;
  CrossEntropyAttributes a;
  Expected<T> expected;
  FaultSlot fault;

  static std::int64_t row_bytes(const Problem& p) {
    return ceil_div(p.classes, 8) * 8 * static_cast<std::int64_t>(sizeof(S));
  }
  static std::int64_t shared_bytes(const Problem& p) {
    return row_bytes(p) +
           Segments::of<S>(p).count * static_cast<std::int64_t>(sizeof(SegmentSums<T>));
  }
  static bool fit(const Problem& p) { return shared_bytes(p) <= most_bytes; }

  LossRows(const Problem& p, const KernelArgs& args, S* tile_logits, std::int64_t tile)
      : logits(tile_logits),
        lead(static_cast<int>(p.lead)),
        block(static_cast<int>(p.block)),
        classes(static_cast<int>(p.classes)),
        block_stride(p.height * p.lead),
        segments(Segments::of<S>(p)),
        first_row(tile * p.height),
        targets(args.inputs[2], p.index),
        grads(args.in<T>(3)),
        losses(args.out<T>(0)),
        a(p.loss),
        expected(p),
        fault(args) {}

  // Calls body(column, offset) for the packs of this thread: it alone writes them. The offset is
  // the pack's from the row's first logit.
  template <class Body>
  __device__ void packs(const Body& body) const {
    constexpr int step = threads * width;
    int within = static_cast<int>(threadIdx.x) * width;
    std::int64_t offset = 0;
    for (int column = within; column < classes; column += step, within += step) {
      for (; within >= block; within -= block) offset += block_stride;
      body(column, offset + within);
    }
  }

  __device__ void row(std::int64_t r, S* shared, SegmentSums<T>* parts) const {
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    S* x = logits + r * lead;
    const std::int64_t row = first_row + r, target = targets[row];
    if (!row_counts(row, target, classes, a.ignore_index, fault, thread == 0)) {
      const T zero[width] = {};
      packs([&](int, std::int64_t offset) { store_pack(x + offset, zero); });
      if (thread == 0) losses[row] = T(0);
      return;
    }
    packs([&](int column, std::int64_t offset) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                       static_cast<unsigned>(__cvta_generic_to_shared(shared + column))),
                   "l"(x + offset));
    });
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();

    for (int i = warp; i < segments.count; i += threads / 32) {
      const int b = i / segments.in_block;
      const int begin = (i - b * segments.in_block) * segment_width<S>, first = b * block;
      const int count = ::min(segment_width<S>, ::min(block, classes - first) - begin);
      const auto sums = sum_segment(shared + first + begin, count, lane, a.label_smoothing != 0.0);
      if (lane == 0) parts[i] = sums;
    }
    __syncthreads();
    __shared__ T logsumexp;
    if (warp == 0) {
      const LogitSums<T> sums = join_segments(parts, segments.count, lane);
      if (lane == 0) {
        logsumexp = sums.logsumexp();
        losses[row] = sums.loss(widen(shared[target]), a.label_smoothing, classes);
      }
    }
    __syncthreads();

    const RowGradient<S> gradient(logsumexp, grads[row], expected);
    const int at_target = static_cast<int>(target);
    packs([&](int column, std::int64_t offset) {
      T v[width], result[width] = {};
      load_pack(shared + column, v);
      if (column + width <= classes && (at_target < column || at_target >= column + width)) {
#pragma unroll
        for (int k = 0; k < width; ++k) result[k] = gradient.elsewhere(v[k]);
      } else {
#pragma unroll
        for (int k = 0; k < width; ++k)
          if (column + k < classes)
            result[k] =
                column + k == at_target ? gradient.at_target(v[k]) : gradient.elsewhere(v[k]);
      }
      store_pack(x + offset, result);
    });
  }
};

template <class S>
__global__ void __launch_bounds__(LossRows<S>::threads, 2)
    loss_rows_kernel(LossRows<S> rows, int row_bytes) {
  extern __shared__ uint4 loss_row[];
  auto* bytes = reinterpret_cast<unsigned char*>(loss_row);
  rows.row(blockIdx.x, reinterpret_cast<S*>(bytes),
           reinterpret_cast<SegmentSums<Compute<S>>*>(bytes + row_bytes));
}

template <class S>
void launch_loss_rows(const Problem& p, const KernelArgs& args, S* logits, std::int64_t tile) {
  launch({args, "linear_cross_entropy_joint", dim3(static_cast<unsigned>(p.height_of(tile))),
          dim3(LossRows<S>::threads), static_cast<std::size_t>(LossRows<S>::shared_bytes(p))},
         loss_rows_kernel<S>, LossRows<S>(p, args, logits, tile),
         static_cast<int>(LossRows<S>::row_bytes(p)));
}

}  // namespace ebb::cuda
