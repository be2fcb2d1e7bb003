// Rows of logits that become their loss and their gradient while they lie in shared memory: read
// once, written once.
#pragma once

#include "ops/cross_entropy/cross_entropy.h"
#include "ops/cross_entropy/rows.cuh"

namespace ebb::cuda {

// exp(x - base). Half types have few enough digits for the quick power of two, which with the
// rounding of its argument is off by 1e-5 at most.
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

template <class S>
struct LossRows {
  using T = Compute<S>;
  static constexpr int threads = 512, width = pack<S>;
  static constexpr std::int64_t most_bytes = 220 * 1024;  // of a row: what a block may share

  S* logits;               // become their gradient; padding becomes zero
  std::int64_t lead;       // from one row to the next, whole packs
  std::int64_t first_row;  // its number among all rows
  std::int64_t classes;
  Indices targets;
  const T* grads;
  T* losses;
  CrossEntropyAttributes a;
  FaultSlot fault;

  static bool fit(std::int64_t lead) {
    return lead % width == 0 && lead * static_cast<std::int64_t>(sizeof(S)) <= most_bytes;
  }

  // Calls body(column) for the packs of this thread: it alone ever touches them.
  template <class Body>
  __device__ void packs(const Body& body) const {
    for (int column = static_cast<int>(threadIdx.x) * width; column < lead;
         column += threads * width)
      body(column);
  }
  // Calls body(k) for those of a pack's elements that are no padding.
  template <class Body>
  __device__ void elements(int column, const Body& body) const {
    if (column + width <= classes) {
#pragma unroll
      for (int k = 0; k < width; ++k) body(k);
    } else {
#pragma unroll
      for (int k = 0; k < width; ++k)
        if (column + k < classes) body(k);
    }
  }

  __device__ void row(std::int64_t r, S* shared) const {
    const Group<threads> group{static_cast<int>(threadIdx.x)};
    S* x = logits + r * lead;
    const std::int64_t row = first_row + r, target = targets[row];
    if (!row_counts(row, target, classes, a.ignore_index, fault, group.lane == 0)) {
      const T zero[width] = {};
      packs([&](int column) { store_pack(x + column, zero); });
      if (group.lane == 0) losses[row] = T(0);
      return;
    }
    const T at_target = group.lane == 0 ? widen(x[target]) : T(0);
    packs([&](int column) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                       static_cast<unsigned>(__cvta_generic_to_shared(shared + column))),
                   "l"(x + column));
    });
    asm volatile("cp.async.wait_all;" ::: "memory");

    LogitSums<T> sums;
    packs([&](int column) {
      T v[width];
      load_pack(shared + column, v);
      elements(column, [&](int k) { sums.most = Larger{}(sums.most, v[k]); });
    });
    sums.most = group.largest(sums.most);
    const ExponentialFrom<S> from_most(sums.most);
    packs([&](int column) {
      T v[width], part = T(0), part_logits = T(0);
      load_pack(shared + column, v);
      elements(column, [&](int k) {
        part += from_most(v[k]);
        part_logits += v[k];
      });
      sums.total += static_cast<double>(part);
      sums.logits += static_cast<double>(part_logits);
    });
    sums.total = group.sum(sums.total);
    if (a.label_smoothing != 0.0) sums.logits = group.sum(sums.logits);
    if (group.lane == 0) losses[row] = sums.loss(at_target, a.label_smoothing, classes);

    const LogitGradient<T> gradient(true, target, sums.logsumexp(), grads[row], a.label_smoothing,
                                    classes);
    const ExponentialFrom<S> probability(gradient.lse);
    packs([&](int column) {
      T v[width], result[width] = {};
      load_pack(shared + column, v);
      elements(column,
               [&](int k) { result[k] = (probability(v[k]) - gradient.each) * gradient.g; });
      if (target >= column && target < column + width)
        elements(column, [&](int k) {
          if (column + k == target)
            result[k] = (probability(v[k]) - gradient.at_target) * gradient.g;
        });
      store_pack(x + column, result);
    });
  }
};

template <class S>
__global__ void __launch_bounds__(LossRows<S>::threads, 2) loss_rows_kernel(LossRows<S> rows) {
  extern __shared__ uint4 loss_row[];
  rows.row(blockIdx.x, reinterpret_cast<S*>(loss_row));
}

template <class S>
void launch_loss_rows(const KernelArgs& args, const LossRows<S>& rows, std::int64_t count) {
  launch({args, "linear_cross_entropy_joint", dim3(static_cast<unsigned>(count)),
          dim3(LossRows<S>::threads), static_cast<std::size_t>(rows.lead) * sizeof(S)},
         loss_rows_kernel<S>, rows);
}

}  // namespace ebb::cuda
