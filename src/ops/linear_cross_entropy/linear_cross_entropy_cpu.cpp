// The logits are made in tiles of `chunk` rows × `block` classes.
//
// float32 and float64 take all classes in one block, and the products write straight into the
// outputs. Workspace: chunk × V logits.
//
// Half types have float logits and sums. On processors with bfloat16 products, factors are read
// directly, and the gradient of a tile of logits is rounded to bfloat16 before it is multiplied.
// Otherwise a chunk of x (chunk × D) and a block of the weight (block × D) are widened when needed.
// Backward walks blocks in its outer loop, so that a block's gradient is summed in float (block × D
// × 4 bytes being about 4 MiB) and rounded once; the gradient of x is summed in float for all rows
// (N × D).
#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "ops/cross_entropy/rows.h"
#include "ops/library_size.h"
#include "ops/linear_cross_entropy/both_walks.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/matmul/product.h"
#include "ops/workspace_areas.h"

namespace ebb {
namespace {

enum class Blocks { one, some_mebibytes };

struct Problem {
  std::int64_t rows, features, classes;
  std::int64_t chunk;  // rows of a tile
  std::int64_t block;  // classes of a tile
  CrossEntropyAttributes loss;

  Problem(const KernelRequest& request, const LinearCrossEntropyAttributes& a, Blocks blocks)
      : rows(request.in(0).shape()[0]),
        features(request.in(0).shape()[1]),
        classes(request.in(1).shape()[0]),
        chunk(chunk_rows(a, rows, classes, request.in(0).dtype())),
        block(classes),
        loss(a.loss) {
    require_library_sizes(request.op.name(),
                          {{"classes", classes}, {"features", features}, {"rows at once", chunk}});
    if (blocks == Blocks::some_mebibytes)
      block = std::min(classes, std::max<std::int64_t>(64, (4_MiB).count / 4 / features));
  }
};

// Products of matrices with at most this many rows and columns and elements of type F.
template <class F>
class Product {
  using Kernel =
      std::conditional_t<std::is_same_v<F, BFloat16>, PackedProduct<F>, MatrixProduct<F>>;

 public:
  Product(std::int64_t rows, std::int64_t inner, std::int64_t columns)
      : kernel_(make(rows, inner, columns)) {}
  Bytes workspace() const { return kernel_.workspace(); }
  void operator()(const MatrixLayout& a, const F* x, const MatrixLayout& b, const F* y, Store store,
                  Compute<F>* out, std::int64_t stride, std::byte* workspace) const {
    kernel_.sum({a, x, b, y}, store, out, stride, workspace, workers_);
  }

 private:
  static Kernel make(std::int64_t rows, std::int64_t inner, std::int64_t columns) {
    if constexpr (std::is_same_v<F, BFloat16>)
      return Kernel(rows, inner, columns, Kernel::Result::sums);
    else
      return Kernel(rows, inner, columns);
  }

  Kernel kernel_;
  int workers_ = threads();
};

constexpr Store store_or_add(bool first) { return first ? Store::overwrite : Store::add; }

// Whether something of type S has to be converted to be of type T.
template <class S, class T>
constexpr bool converts = !std::is_same_v<S, T>;

// `count` elements as factors of products: in place, or widened into `area`.
template <class F, class S>
const F* factor(const S* from, F* area, std::int64_t count) {
  if constexpr (converts<S, F>) {
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
  if constexpr (converts<S, Compute<S>>)
    parallel_for(count, 1 << 15, [&](std::int64_t begin, std::int64_t end) {
      narrow(area + begin, to + begin, end - begin);
    });
}

// Rounds `count` floats and moves them together, to the beginning.
template <class F>
void narrow_in_place(float* values, std::int64_t count) {
  F piece[256];
  for (std::int64_t i = 0; i < count; i += 256) {
    const std::int64_t n = std::min<std::int64_t>(256, count - i);
    narrow(values + i, piece, n);
    std::memcpy(reinterpret_cast<std::byte*>(values) + i * sizeof(F), piece, n * sizeof(F));
  }
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

// S is the type of x and the weight, F that of the products' factors, I that of the targets.
template <class S, class F, class I>
struct Forward {
  using T = Compute<S>;
  static constexpr Blocks blocks = converts<S, F> ? Blocks::some_mebibytes : Blocks::one;
  Problem p;
  Product<F> product;
  WorkspaceAreas areas;
  Bytes logits_at, x_at, weight_at, product_at;

  explicit Forward(const Problem& problem) : p(problem), product(p.chunk, p.features, p.block) {
    logits_at = areas.add<T>(p.chunk * p.classes);
    x_at = areas.add<F>(converts<S, F> ? p.chunk * p.features : 0);
    weight_at = areas.add<F>(converts<S, F> ? p.block * p.features : 0);
    product_at = areas.add(product.workspace());
  }

  void operator()(const KernelArgs& args) const {
    T* logits = args.scratch<T>(logits_at);
    const RowLoss<T, I> loss(p, args);
    for (std::int64_t row = 0; row < p.rows; row += p.chunk) {
      const std::int64_t count = std::min(p.chunk, p.rows - row);
      const F* x =
          factor(args.in<S>(0) + row * p.features, args.scratch<F>(x_at), count * p.features);
      for (std::int64_t v = 0; v < p.classes; v += p.block) {
        const std::int64_t width = std::min(p.block, p.classes - v);
        const F* weight =
            factor(args.in<S>(1) + v * p.features, args.scratch<F>(weight_at), width * p.features);
        product(MatrixLayout::plain(count, p.features), x, MatrixLayout::swapped(p.features, width),
                weight, Store::overwrite, logits + v, p.classes,
                args.scratch<std::byte>(product_at));
      }
      for_rows(count, p.classes, [&](std::int64_t i) {
        args.out<T>(0)[row + i] = loss(row + i, logits + i * p.classes, args.out<T>(1)[row + i]);
      });
    }
  }
};

template <class S, class F, class I>
struct Backward {
  using T = Compute<S>;
  static constexpr Blocks blocks = converts<S, T> ? Blocks::some_mebibytes : Blocks::one;
  Problem p;
  bool x_needed, weight_needed;
  Product<F> logits_product, x_product, weight_product;
  WorkspaceAreas areas;
  Bytes tile_at, x_at, weight_at, dx_at, dweight_at, product_at;

  Backward(const Problem& problem, const LinearCrossEntropyGradAttributes& a)
      : p(problem),
        x_needed(a.x),
        weight_needed(a.weight),
        logits_product(p.chunk, p.features, p.block),
        x_product(p.chunk, p.block, p.features),
        weight_product(p.block, p.chunk, p.features) {
    const auto factors = [&](std::int64_t rows) {
      return areas.add<F>(converts<S, F> ? rows * p.features : 0);
    };
    const auto sums = [&](std::int64_t rows) {
      return areas.add<T>(converts<S, T> ? rows * p.features : 0);
    };
    tile_at = areas.add<T>(p.chunk * p.block);
    x_at = factors(p.chunk);
    weight_at = factors(p.block);
    dx_at = sums(x_needed ? p.rows : 0);
    dweight_at = sums(weight_needed ? p.block : 0);
    product_at = areas.add(
        std::max({logits_product.workspace(), x_product.workspace(), weight_product.workspace()}));
  }

  void operator()(const KernelArgs& args) const {
    S* dx_out = x_needed ? args.out<S>(0) : nullptr;
    S* dweight_out = weight_needed ? args.out<S>(x_needed ? 1 : 0) : nullptr;
    if (p.rows == 0 && weight_needed) std::fill_n(dweight_out, p.classes * p.features, S(0));
    if (p.rows == 0) return;
    std::byte* workspace = args.scratch<std::byte>(product_at);
    T* dx = sums(dx_out, args.scratch<T>(dx_at));
    for (std::int64_t v = 0; v < p.classes; v += p.block) {
      const std::int64_t width = std::min(p.block, p.classes - v);
      const F* weight =
          factor(args.in<S>(1) + v * p.features, args.scratch<F>(weight_at), width * p.features);
      T* dweight =
          weight_needed ? sums(dweight_out + v * p.features, args.scratch<T>(dweight_at)) : nullptr;
      for (std::int64_t row = 0; row < p.rows; row += p.chunk) {
        const std::int64_t count = std::min(p.chunk, p.rows - row);
        const F* x =
            factor(args.in<S>(0) + row * p.features, args.scratch<F>(x_at), count * p.features);
        const F* tile = logits_gradient(args, row, count, v, width, x, weight);
        const std::int64_t stride = width * factor_stride;
        if (x_needed)
          x_product(MatrixLayout{count, width, stride, 1}, tile,
                    MatrixLayout::plain(width, p.features), weight, store_or_add(v == 0),
                    dx + row * p.features, p.features, workspace);
        if (weight_needed)
          weight_product(MatrixLayout{width, count, 1, stride}, tile,
                         MatrixLayout::plain(count, p.features), x, store_or_add(row == 0), dweight,
                         p.features, workspace);
      }
      if (weight_needed) rounded(dweight, dweight_out + v * p.features, width * p.features);
    }
    if (x_needed) rounded(dx, dx_out, p.rows * p.features);
  }

  // The gradient of the logits [v, v + width) of rows [row, row + count), as a factor of the other
  // products. Its rows start at the addresses of the logits' rows, and are shorter if rounded.
  static constexpr std::int64_t factor_stride = sizeof(T) / sizeof(F);
  const F* logits_gradient(const KernelArgs& args, std::int64_t row, std::int64_t count,
                           std::int64_t v, std::int64_t width, const F* x, const F* weight) const {
    T* tile = args.scratch<T>(tile_at);
    const RowLoss<T, I> loss(p, args);
    logits_product(MatrixLayout::plain(count, p.features), x,
                   MatrixLayout::swapped(p.features, width), weight, Store::overwrite, tile, width,
                   args.scratch<std::byte>(product_at));
    for_rows(count, width, [&](std::int64_t i) {
      loss.differentiate(row + i, v, width, args.in<T>(3)[row + i], args.in<T>(4)[row + i],
                         tile + i * width);
      if constexpr (converts<T, F>) narrow_in_place<F>(tile + i * width, width);
    });
    return args.scratch<F>(tile_at);
  }

  // Where a gradient is summed: the output itself, or for half types a wider area.
  static T* sums(S* out, T* area) {
    if constexpr (converts<S, T>)
      return area;
    else
      return out;
  }
};

// Turns a chunk's logits into their gradient in place. The products equal those of two walks with
// all classes in one block, so that no bit differs.
template <class T, class I>
struct Joint {
  Problem p;
  bool x_needed, weight_needed;
  Product<T> logits_product, x_product, weight_product;
  WorkspaceAreas areas;
  Bytes logits_at, product_at;

  Joint(const Problem& problem, const LinearCrossEntropyGradAttributes& a)
      : p(problem),
        x_needed(a.x),
        weight_needed(a.weight),
        logits_product(p.chunk, p.features, p.classes),
        x_product(p.chunk, p.classes, p.features),
        weight_product(p.classes, p.chunk, p.features) {
    logits_at = areas.add<T>(p.chunk * p.classes);
    product_at = areas.add(
        std::max({logits_product.workspace(), x_product.workspace(), weight_product.workspace()}));
  }

  void operator()(const KernelArgs& args) const {
    T* logits = args.scratch<T>(logits_at);
    std::byte* workspace = args.scratch<std::byte>(product_at);
    T* dx = x_needed ? args.out<T>(1) : nullptr;
    T* dweight = weight_needed ? args.out<T>(x_needed ? 2 : 1) : nullptr;
    if (p.rows == 0 && weight_needed) std::fill_n(dweight, p.classes * p.features, T(0));
    const T *x = args.in<T>(0), *weight = args.in<T>(1);
    const RowLoss<T, I> loss(p, args);
    for (std::int64_t row = 0; row < p.rows; row += p.chunk) {
      const std::int64_t count = std::min(p.chunk, p.rows - row);
      const T* part = x + row * p.features;
      logits_product(MatrixLayout::plain(count, p.features), part,
                     MatrixLayout::swapped(p.features, p.classes), weight, Store::overwrite, logits,
                     p.classes, workspace);
      for_rows(count, p.classes, [&](std::int64_t i) {
        T logsumexp, *own = logits + i * p.classes;
        args.out<T>(0)[row + i] = loss(row + i, own, logsumexp);
        loss.differentiate(row + i, 0, p.classes, logsumexp, args.in<T>(3)[row + i], own);
      });
      if (x_needed)
        x_product(MatrixLayout::plain(count, p.classes), logits,
                  MatrixLayout::plain(p.classes, p.features), weight, Store::overwrite,
                  dx + row * p.features, p.features, workspace);
      if (weight_needed)
        weight_product(MatrixLayout::swapped(p.classes, count), logits,
                       MatrixLayout::plain(count, p.features), part, store_or_add(row == 0),
                       dweight, p.features, workspace);
    }
  }
};

// make(element, factor, index) with the types that the request asks for.
template <class Make>
Kernel bind(const KernelRequest& request, const Make& make) {
  const auto kernel_of = [](const auto& made) { return Kernel{made, made.areas.total()}; };
  return dispatch_index(request, request.in(2).dtype(), [&](auto index) {
    return dispatch_floating(request, request.in(0).dtype(), [&](auto element) {
      using S = typename decltype(element)::type;
      if constexpr (std::is_same_v<S, BFloat16>)
        if (PackedProduct<BFloat16>::available()) return kernel_of(make(element, element, index));
      return kernel_of(make(element, TypeTag<Compute<S>>{}, index));
    });
  });
}

}  // namespace

Kernel bind_linear_cross_entropy_cpu(const KernelRequest& request,
                                     const LinearCrossEntropyAttributes& a) {
  return bind(request, [&](auto element, auto factor, auto index) {
    using Run = Forward<typename decltype(element)::type, typename decltype(factor)::type,
                        typename decltype(index)::type>;
    return Run(Problem(request, a, Run::blocks));
  });
}

Kernel bind_linear_cross_entropy_grad_cpu(const KernelRequest& request,
                                          const LinearCrossEntropyGradAttributes& a) {
  return bind(request, [&](auto element, auto factor, auto index) {
    using Run = Backward<typename decltype(element)::type, typename decltype(factor)::type,
                         typename decltype(index)::type>;
    return Run(Problem(request, a.forward, Run::blocks), a);
  });
}

Kernel bind_linear_cross_entropy_joint_cpu(const KernelRequest& request,
                                           const LinearCrossEntropyJointAttributes& joint) {
  const LinearCrossEntropyGradAttributes& a = joint.backward;
  return bind(request, [&](auto element, auto factor, auto index) {
    using S = typename decltype(element)::type;
    using F = typename decltype(factor)::type;
    using I = typename decltype(index)::type;
    if constexpr (converts<S, Compute<S>>) {
      // Half types still take two walks: in one, the gradient of the whole weight would be summed
      // in float32.
      const Forward<S, F, I> forward(Problem(request, a.forward, Forward<S, F, I>::blocks));
      const Backward<S, F, I> backward(Problem(request, a.forward, Backward<S, F, I>::blocks), a);
      return BothWalks<Forward<S, F, I>, Backward<S, F, I>, Compute<S>>(forward, backward,
                                                                        forward.p.rows);
    } else {
      return Joint<S, I>(Problem(request, a.forward, Blocks::one), a);
    }
  });
}

}  // namespace ebb
