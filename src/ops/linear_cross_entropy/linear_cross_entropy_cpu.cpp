// The logits are made in tiles of `chunk` rows × `block` classes.
//
// float32 and float64 take all classes in one block, and the products write straight into the
// outputs. Workspace: chunk × V logits.
//
// Half types are multiplied in float: a chunk of x (chunk × D) and a block of the weight
// (block × D) are widened as they are needed, block × D × 4 bytes being about 4 MiB. Backward walks
// blocks in its outer loop, so that a block's gradient is summed in float (block × D) and rounded
// once; the gradient of x is summed in float for all rows (N × D).
#include <algorithm>

#include "core/parallel.h"
#include "ops/cross_entropy/rows.h"
#include "ops/linear_cross_entropy/both_walks.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/matmul/gemm.h"
#include "ops/workspace_areas.h"

namespace ebb {
namespace {

struct Problem {
  std::int64_t rows, features, classes;
  std::int64_t chunk;  // rows of a tile
  std::int64_t block;  // classes of a tile
  CrossEntropyAttributes loss;

  Problem(const KernelRequest& request, const LinearCrossEntropyAttributes& a, bool half)
      : rows(request.in(0).shape()[0]),
        features(request.in(0).shape()[1]),
        classes(request.in(1).shape()[0]),
        chunk(chunk_rows(a, rows, classes, request.in(0).dtype())),
        block(classes),
        loss(a.loss) {
    if (half) block = std::min(classes, std::max<std::int64_t>(64, (4_MiB).count / 4 / features));
  }
};

// Whether a storage type is multiplied in a wider one.
template <class S>
constexpr bool widens = !std::is_same_v<S, Compute<S>>;

// `count` elements in the type of the products: as they lie, or widened into `area`.
template <class S>
const Compute<S>* wide(const S* from, Compute<S>* area, std::int64_t count) {
  if constexpr (widens<S>) {
    parallel_for(count, 1 << 15, [&](std::int64_t begin, std::int64_t end) {
      widen(from + begin, area + begin, end - begin);
    });
    return area;
  } else {
    return from;
  }
}

template <class S>
void rounded(const Compute<S>* area, S* to, std::int64_t count) {
  if constexpr (widens<S>)
    parallel_for(count, 1 << 15, [&](std::int64_t begin, std::int64_t end) {
      narrow(area + begin, to + begin, end - begin);
    });
}

template <class Body>
void for_rows(std::int64_t rows, std::int64_t columns, const Body& body) {
  parallel_for(rows, std::max<std::int64_t>(1, 8192 / columns),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) body(row);
               });
}

// The loss of a row, and the gradient of its logits.
template <class T, class I>
class RowLoss {
 public:
  RowLoss(const Problem& p, const KernelArgs& args)
      : loss_(p.loss),
        classes_(p.classes),
        shares_(p.loss.label_smoothing, p.classes),
        targets_(args.in<I>(2)),
        fault_(*args.fault) {}

  // Of all logits of a row; `logsumexp` gets theirs.
  T operator()(std::int64_t row, const T* logits, T& logsumexp) const {
    const double smoothing = loss_.label_smoothing;
    const RowSums<T> sums = row_sums(logits, classes_, smoothing != 0.0);
    logsumexp = sums.logsumexp;
    return counts(row) ? row_loss(logits, classes_, targets_[row], smoothing, sums) : T(0);
  }

  // Turns logits [v, v + width) of a row into their gradient, g being that of the loss.
  void differentiate(std::int64_t row, std::int64_t v, std::int64_t width, T logsumexp, T g,
                     T* logits) const {
    if (!counts(row)) {
      std::fill_n(logits, width, T(0));
      return;
    }
    row_gradient(logits, logits, width, logsumexp, g, static_cast<T>(shares_.each));
    const std::int64_t target = targets_[row];
    if (target >= v && target < v + width) logits[target - v] -= g * static_cast<T>(shares_.target);
  }

 private:
  bool counts(std::int64_t row) const {
    return row_counts(row, targets_[row], classes_, loss_.ignore_index, fault_);
  }

  CrossEntropyAttributes loss_;
  std::int64_t classes_;
  TargetShares shares_;
  const I* targets_;
  Fault& fault_;
};

template <class S, class I>
struct Forward {
  using T = Compute<S>;
  Problem p;
  WorkspaceAreas areas;
  Bytes logits_at, x_at, weight_at;

  explicit Forward(const Problem& problem) : p(problem) {
    logits_at = areas.add<T>(p.chunk * p.classes);
    x_at = areas.add<T>(widens<S> ? p.chunk * p.features : 0);
    weight_at = areas.add<T>(widens<S> ? p.block * p.features : 0);
  }

  void operator()(const KernelArgs& args) const {
    T* logits = args.scratch<T>(logits_at);
    const RowLoss<T, I> loss(p, args);
    for (std::int64_t row = 0; row < p.rows; row += p.chunk) {
      const std::int64_t count = std::min(p.chunk, p.rows - row);
      const T* x =
          wide(args.in<S>(0) + row * p.features, args.scratch<T>(x_at), count * p.features);
      for (std::int64_t v = 0; v < p.classes; v += p.block) {
        const std::int64_t width = std::min(p.block, p.classes - v);
        const T* weight =
            wide(args.in<S>(1) + v * p.features, args.scratch<T>(weight_at), width * p.features);
        gemm(MatrixLayout::plain(count, p.features), x, MatrixLayout::swapped(p.features, width),
             weight, T(0), logits + v, static_cast<int>(p.classes));
      }
      for_rows(count, p.classes, [&](std::int64_t i) {
        args.out<T>(0)[row + i] = loss(row + i, logits + i * p.classes, args.out<T>(1)[row + i]);
      });
    }
  }
};

template <class S, class I>
struct Backward {
  using T = Compute<S>;
  Problem p;
  bool x_needed, weight_needed;
  WorkspaceAreas areas;
  Bytes tile_at, x_at, weight_at, dx_at, dweight_at;

  Backward(const Problem& problem, const LinearCrossEntropyGradAttributes& a)
      : p(problem), x_needed(a.x), weight_needed(a.weight) {
    const auto half_only = [&](std::int64_t rows) {
      return areas.add<T>(widens<S> ? rows * p.features : 0);
    };
    tile_at = areas.add<T>(p.chunk * p.block);
    x_at = half_only(p.chunk);
    weight_at = half_only(p.block);
    dx_at = half_only(x_needed ? p.rows : 0);
    dweight_at = half_only(weight_needed ? p.block : 0);
  }

  void operator()(const KernelArgs& args) const {
    S* dx_out = x_needed ? args.out<S>(0) : nullptr;
    S* dweight_out = weight_needed ? args.out<S>(x_needed ? 1 : 0) : nullptr;
    if (p.rows == 0 && weight_needed) std::fill_n(dweight_out, p.classes * p.features, S(0));
    if (p.rows == 0) return;
    T* tile = args.scratch<T>(tile_at);
    const RowLoss<T, I> loss(p, args);
    T* dx = sums(dx_out, args.scratch<T>(dx_at));
    for (std::int64_t v = 0; v < p.classes; v += p.block) {
      const std::int64_t width = std::min(p.block, p.classes - v);
      const T* weight =
          wide(args.in<S>(1) + v * p.features, args.scratch<T>(weight_at), width * p.features);
      T* dweight =
          weight_needed ? sums(dweight_out + v * p.features, args.scratch<T>(dweight_at)) : nullptr;
      for (std::int64_t row = 0; row < p.rows; row += p.chunk) {
        const std::int64_t count = std::min(p.chunk, p.rows - row);
        const T* x =
            wide(args.in<S>(0) + row * p.features, args.scratch<T>(x_at), count * p.features);
        const int lead = static_cast<int>(p.features);
        gemm(MatrixLayout::plain(count, p.features), x, MatrixLayout::swapped(p.features, width),
             weight, T(0), tile, static_cast<int>(width));
        for_rows(count, width, [&](std::int64_t i) {
          loss.differentiate(row + i, v, width, args.in<T>(3)[row + i], args.in<T>(4)[row + i],
                             tile + i * width);
        });
        if (x_needed)
          gemm(MatrixLayout::plain(count, width), tile, MatrixLayout::plain(width, p.features),
               weight, v == 0 ? T(0) : T(1), dx + row * p.features, lead);
        if (weight_needed)
          gemm(MatrixLayout::swapped(width, count), tile, MatrixLayout::plain(count, p.features), x,
               row == 0 ? T(0) : T(1), dweight, lead);
      }
      if (weight_needed) rounded(dweight, dweight_out + v * p.features, width * p.features);
    }
    if (x_needed) rounded(dx, dx_out, p.rows * p.features);
  }

  // Where a gradient is summed: the output itself, or for half types a wider area.
  static T* sums(S* out, T* area) {
    if constexpr (widens<S>)
      return area;
    else
      return out;
  }
};

// A chunk's logits become their gradient where they lie. The products are those of the two walks,
// with all classes in one block, so that no bit differs.
template <class T, class I>
struct Joint {
  Problem p;
  bool x_needed, weight_needed;
  WorkspaceAreas areas;
  Bytes logits_at;

  Joint(const Problem& problem, const LinearCrossEntropyGradAttributes& a)
      : p(problem), x_needed(a.x), weight_needed(a.weight) {
    logits_at = areas.add<T>(p.chunk * p.classes);
  }

  void operator()(const KernelArgs& args) const {
    T* logits = args.scratch<T>(logits_at);
    T* dx = x_needed ? args.out<T>(1) : nullptr;
    T* dweight = weight_needed ? args.out<T>(x_needed ? 2 : 1) : nullptr;
    if (p.rows == 0 && weight_needed) std::fill_n(dweight, p.classes * p.features, T(0));
    const T *x = args.in<T>(0), *weight = args.in<T>(1);
    const RowLoss<T, I> loss(p, args);
    const int lead = static_cast<int>(p.features), wide = static_cast<int>(p.classes);
    for (std::int64_t row = 0; row < p.rows; row += p.chunk) {
      const std::int64_t count = std::min(p.chunk, p.rows - row);
      const T* part = x + row * p.features;
      gemm(MatrixLayout::plain(count, p.features), part,
           MatrixLayout::swapped(p.features, p.classes), weight, T(0), logits, wide);
      for_rows(count, p.classes, [&](std::int64_t i) {
        T logsumexp, *own = logits + i * p.classes;
        args.out<T>(0)[row + i] = loss(row + i, own, logsumexp);
        loss.differentiate(row + i, 0, p.classes, logsumexp, args.in<T>(3)[row + i], own);
      });
      if (x_needed)
        gemm(MatrixLayout::plain(count, p.classes), logits,
             MatrixLayout::plain(p.classes, p.features), weight, T(0), dx + row * p.features, lead);
      if (weight_needed)
        gemm(MatrixLayout::swapped(p.classes, count), logits,
             MatrixLayout::plain(count, p.features), part, row == 0 ? T(0) : T(1), dweight, lead);
    }
  }
};

template <class Make>
Kernel bind(const KernelRequest& request, const Make& make) {
  return dispatch_index(request, request.in(2).dtype(), [&](auto index) {
    return dispatch_floating(request, request.in(0).dtype(), [&](auto element) {
      const auto kernel = make(element, index);
      return Kernel{kernel, kernel.areas.total()};
    });
  });
}

}  // namespace

Kernel bind_linear_cross_entropy_cpu(const KernelRequest& request,
                                     const LinearCrossEntropyAttributes& a) {
  return bind(request, [&](auto element, auto index) {
    using S = typename decltype(element)::type;
    using I = typename decltype(index)::type;
    return Forward<S, I>(Problem(request, a, widens<S>));
  });
}

Kernel bind_linear_cross_entropy_grad_cpu(const KernelRequest& request,
                                          const LinearCrossEntropyGradAttributes& a) {
  return bind(request, [&](auto element, auto index) {
    using S = typename decltype(element)::type;
    using I = typename decltype(index)::type;
    return Backward<S, I>(Problem(request, a.forward, widens<S>), a);
  });
}

Kernel bind_linear_cross_entropy_joint_cpu(const KernelRequest& request,
                                           const LinearCrossEntropyGradAttributes& a) {
  return bind(request, [&](auto element, auto index) {
    using S = typename decltype(element)::type;
    using I = typename decltype(index)::type;
    const Problem p(request, a.forward, widens<S>);
    // Half types still take two walks: in one, the gradient of the whole weight would be summed in
    // float32.
    if constexpr (widens<S>)
      return BothWalks<Forward<S, I>, Backward<S, I>, Compute<S>>(Forward<S, I>(p),
                                                                  Backward<S, I>(p, a), p.rows);
    else
      return Joint<S, I>(p, a);
  });
}

}  // namespace ebb
