// Cross-entropy of rows of logits, all of them in memory. See rows.h for the arithmetic.
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/cross_entropy/rows.cuh"

namespace ebb {
namespace {

using namespace cuda;

struct Forward {
  const void* logits;
  Indices targets;
  void *losses, *logsumexps;
  CrossEntropyAttributes a;
  FaultSlot fault;

  template <class S, class Walk>
  __device__ void row(std::int64_t r, const Walk& walk) const {
    using T = Compute<S>;
    const S* x = static_cast<const S*>(logits) + r * walk.columns;
    const LogitSums<T> sums(walk, walk.open(x), a.label_smoothing != 0.0);
    if (walk.lane != 0) return;
    static_cast<T*>(logsumexps)[r] = sums.logsumexp();
    const std::int64_t target = targets[r];
    const bool counts = row_counts(r, target, walk.columns, a.ignore_index, fault);
    static_cast<T*>(losses)[r] =
        counts ? sums.loss(widen(x[target]), a.label_smoothing, walk.columns) : T(0);
  }
};

struct Backward {
  const void* logits;
  Indices targets;
  const void *logsumexps, *grads;
  void* out;
  CrossEntropyAttributes a;
  FaultSlot fault;

  template <class S, class Walk>
  __device__ void row(std::int64_t r, const Walk& walk) const {
    using T = Compute<S>;
    const S* x = static_cast<const S*>(logits) + r * walk.columns;
    S* y = static_cast<S*>(out) + r * walk.columns;
    const std::int64_t target = targets[r];
    const T lse = static_cast<const T*>(logsumexps)[r];
    const LogitGradient<T> gradient(
        row_counts(r, target, walk.columns, a.ignore_index, fault, walk.lane == 0), target, lse,
        static_cast<const T*>(grads)[r], a.label_smoothing, walk.columns);
    walk.slots([&](int, std::int64_t column) {
      T v[Walk::width];
      walk.load(x + column, v);
#pragma unroll
      for (int k = 0; k < Walk::width; ++k) v[k] = gradient(v[k], column + k);
      walk.store(y + column, v);
    });
  }
};

}  // namespace

Kernel bind_cross_entropy_cuda(const KernelRequest& request, const CrossEntropyAttributes& a) {
  const DType index = index_dtype(request, 1);
  return dispatch_floating(request, request.in(0).dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    return Kernel{[shape = RowShape(request.in(0).shape()), index, a](const KernelArgs& args) {
      launch_rows<S>(args, "cross_entropy",
                     Forward{args.inputs[0], Indices(args.inputs[1], index), args.outputs[0],
                             args.outputs[1], a, FaultSlot(args)},
                     shape, aligned_for_packs(args.inputs[0]));
    }};
  });
}

Kernel bind_cross_entropy_grad_cuda(const KernelRequest& request, const CrossEntropyAttributes& a) {
  const DType index = index_dtype(request, 1);
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    return Kernel{[shape = RowShape(request.out().shape()), index, a](const KernelArgs& args) {
      launch_rows<S>(args, "cross_entropy_grad",
                     Backward{args.inputs[0], Indices(args.inputs[1], index), args.inputs[2],
                              args.inputs[3], args.outputs[0], a, FaultSlot(args)},
                     shape, aligned_for_packs(args.inputs[0], args.outputs[0]));
    }};
  });
}

}  // namespace ebb
