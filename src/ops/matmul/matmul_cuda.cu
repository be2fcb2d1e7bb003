// Products over leading axes. Axes with constant strides in both factors are merged into one
// strided batch; cuBLASLt is called once for each index of the remaining axes, of which there are
// few or none.
#include <algorithm>

#include "ebb/storage.h"
#include "ops/cuda/element.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/strided.cuh"
#include "ops/matmul/few_rows_cuda.h"
#include "ops/matmul/gemm_cuda.h"
#include "ops/matmul/matmul_then.h"

namespace ebb {
namespace {

using namespace cuda;

// The largest power of two, up to a buffer's alignment, that divides a number of bytes.
std::int64_t alignment(std::int64_t bytes) {
  return bytes == 0 ? buffer_alignment.count : std::min(buffer_alignment.count, bytes & -bytes);
}

// Leading axes in two parts: calls, and the batch of one call.
struct Batches {
  Shape outer;
  Strides outer_a, outer_b;
  std::int64_t inner = 1, inner_a = 0, inner_b = 0;

  explicit Batches(const MatmulProblem& p) {
    for (int i = p.batch.rank() - 1; i >= 0; --i) {
      const std::int64_t extent = p.batch[i], a = p.batch_a[i], b = p.batch_b[i];
      if (extent == 1) continue;
      if (inner == 1) {
        inner = extent, inner_a = a, inner_b = b;
      } else if (outer.rank() == 0 && a == inner_a * inner && b == inner_b * inner) {
        inner *= extent;
      } else {
        outer.insert(0, extent), outer_a.insert(0, a), outer_b.insert(0, b);
      }
    }
  }
  static std::int64_t offset(const Shape& shape, const Strides& strides, std::int64_t index) {
    std::int64_t result = 0;
    for (int i = shape.rank() - 1; i >= 0; --i) {
      result += index % shape[i] * strides[i];
      index /= shape[i];
    }
    return result;
  }
};

// The product of one call, without bias or what follows.
template <class S>
GemmSpec spec_of(const KernelRequest& request, const MatmulProblem& p, const Batches& batches) {
  const std::int64_t size = sizeof(S), rows = p.a.rows, columns = p.b.columns;
  GemmSpec spec{.a = p.a, .b = p.b, .dtype = request.in(0).dtype(), .out = request.out().dtype()};
  spec.out_lead = columns;
  spec.tf32 = request.target.tf32 && spec.dtype == f32;
  spec.batches = batches.inner;
  spec.batch_a = batches.inner_a, spec.batch_b = batches.inner_b;
  spec.batch_out = rows * columns;
  spec.align_a = alignment(request.in(0).offset * size);
  spec.align_b = alignment(request.in(1).offset * size);
  spec.align_out = buffer_alignment.count;
  for (int i = 0; i < batches.outer.rank(); ++i) {
    spec.align_a = std::min(spec.align_a, alignment(batches.outer_a[i] * size));
    spec.align_b = std::min(spec.align_b, alignment(batches.outer_b[i] * size));
  }
  if (batches.outer.rank() > 0) spec.align_out = alignment(batches.inner * rows * columns * size);
  return spec;
}

// The library has no bias for float64, and wants others aligned.
template <class S>
bool takes_bias(const Arg& bias) {
  return !std::is_same_v<S, double> && bias.offset * static_cast<std::int64_t>(sizeof(S)) % 16 == 0;
}

// Fills the result with rows of the bias, or with zeros, before the product is added.
template <class S>
__global__ void fill_rows(const S* bias, S* out, std::int64_t count, std::int64_t columns) {
  for_items(count, [&](std::int64_t i) {
    out[i] = bias ? bias[i - quotient(i, columns) * columns] : narrow<S>(Compute<S>(0));
  });
}

template <class S>
struct Product {
  Batches batches;
  std::int64_t rows, columns, inner, all;
  bool bias, fills;  // fills: the bias, or zeros, come first and the product is added
  std::optional<Gemm> gemm;

  Product(const KernelRequest& request, const MatmulProblem& p)
      : batches(p),
        rows(p.a.rows),
        columns(p.b.columns),
        inner(p.a.columns),
        all(request.out().shape().elements()),
        bias(p.bias) {
    fills = bias && !takes_bias<S>(request.in(2));
    if (all == 0 || inner == 0) {
      fills = true;
      return;
    }
    GemmSpec spec = spec_of<S>(request, p, batches);
    if (bias && !fills) {
      spec.bias = true;
      gemm = Gemm::find(request.target, spec);
      fills = !gemm;
      spec.bias = false;
    }
    if (gemm) return;
    spec.accumulate = fills;
    gemm.emplace(request.target, spec);
  }

  void operator()(const KernelArgs& args) const {
    if (all == 0) return;
    const S* row = bias ? args.in<S>(2) : nullptr;
    if (fills)
      launch({args, "matmul", item_grid(all), dim3(item_threads)}, fill_rows<S>, row, args.out<S>(),
             all, columns);
    if (!gemm) return;
    const std::int64_t calls = batches.outer.elements();
    for (std::int64_t i = 0; i < calls; ++i)
      gemm->run(args, args.in<S>(0) + Batches::offset(batches.outer, batches.outer_a, i),
                args.in<S>(1) + Batches::offset(batches.outer, batches.outer_b, i),
                args.out<S>() + i * batches.inner * rows * columns, args.workspace, row);
  }
};

// A product and what follows it in one call of the library.
template <class S>
struct ProductThen {
  bool bias;
  Gemm gemm;

  // Empty if the library does not support it, or not with the accuracy of the dtype.
  static std::optional<ProductThen> find(const KernelRequest& request,
                                         const MatmulThenAttributes& a) {
    const MatmulProblem p(
        {matmul_op(), request.inputs.first(a.bias ? 3 : 2), request.outputs, request.target},
        a.product);
    const Batches batches(p);
    if (request.out().shape().elements() == 0 || p.a.columns == 0 || batches.outer.rank() > 0)
      return {};
    const Arg& y = request.inputs.back();
    GemmSpec spec = spec_of<S>(request, p, batches);
    spec.align_out =
        std::min(spec.align_out, alignment(y.offset * static_cast<std::int64_t>(sizeof(S))));
    spec.bias = a.bias;
    if (a.bias && !takes_bias<S>(request.in(2))) return {};
    if (a.function == AfterProduct::add) {
      spec.accumulate = true;
    } else {
      // The library's tanh is approximate, and it needs aligned rows of the other matrix.
      if (sizeof(S) > 2 || a.bias || p.b.columns % 8 != 0 || spec.align_out < 16) return {};
      spec.gelu_grad = true;
    }
    std::optional<Gemm> gemm = Gemm::find(request.target, spec);
    return gemm ? std::optional(ProductThen{a.bias, *gemm}) : std::nullopt;
  }

  void operator()(const KernelArgs& args) const {
    gemm.run(args, args.in<S>(0), args.in<S>(1), args.out<S>(), args.workspace,
             bias ? args.in<S>(2) : nullptr, args.in<S>(bias ? 3 : 2));
  }
};

}  // namespace

Kernel bind_matmul_then_cuda(const KernelRequest& request, const MatmulThenAttributes& a) {
  if (a.function == AfterProduct::add) {
    const int factors = a.bias ? 3 : 2;
    const MatmulProblem problem(
        {matmul_op(), request.inputs.first(static_cast<std::size_t>(factors)), request.outputs,
         request.target},
        a.product);
    if (auto few = few_rows_kernel(request, problem, a.bias ? 2 : -1, factors)) return *few;
  }
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const auto joined = ProductThen<S>::find(request, a);
    return joined ? Kernel{*joined, joined->gemm.workspace(), joined->gemm.ms()}
                  : bind_matmul_then_apart(request, a);
  });
}

Kernel bind_matmul_cuda(const KernelRequest& request, const MatmulAttributes& a) {
  const MatmulProblem problem(request, a);
  if (auto few = few_rows_kernel(request, problem, problem.bias ? 2 : -1, -1)) return *few;
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const Product<S> product(request, problem);
    if (!product.gemm) return Kernel{product};
    const double calls = static_cast<double>(product.batches.outer.elements());
    return Kernel{product, product.gemm->workspace(),
                  product.fills ? 0.0 : calls * product.gemm->ms()};
  });
}

}  // namespace ebb
