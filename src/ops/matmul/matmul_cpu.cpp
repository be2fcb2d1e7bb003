#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "ebb/storage.h"
#include "ops/dispatch.h"
#include "ops/matmul/gemm.h"

namespace ebb {
namespace {

using Problem = MatmulProblem;

template <class T>
void product(const Problem& p, const T* a, const T* b, const T* bias, T* out) {
  const std::int64_t rows = p.a.rows, columns = p.b.columns;
  if (bias)
    for (std::int64_t i = 0; i < rows; ++i) std::copy_n(bias, columns, out + i * columns);
  if (rows == 0 || columns == 0) return;
  if (p.a.columns == 0) {
    if (!bias) std::fill_n(out, rows * columns, T(0));
    return;
  }
  gemm(p.a, a, p.b, b, bias ? T(1) : T(0), out, static_cast<int>(columns));
}

// Many small products: one thread each. Few large ones: all threads on each.
template <class T>
void run(const Problem& p, const KernelArgs& args) {
  const auto one = [&](std::int64_t i) {
    product(p, args.in<T>(0) + p.offset(p.batch_a, i), args.in<T>(1) + p.offset(p.batch_b, i),
            p.bias ? args.in<T>(2) : nullptr, args.out<T>() + i * p.a.rows * p.b.columns);
  };
  const double flops = 2.0 * static_cast<double>(p.a.rows) * static_cast<double>(p.a.columns) *
                       static_cast<double>(p.b.columns);
  if (p.batches >= threads() && flops < 2e8)
    parallel_for(p.batches,
                 std::max<std::int64_t>(1, static_cast<std::int64_t>(1e5 / std::max(flops, 1.0))),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) one(i);
                 });
  else
    for (std::int64_t i = 0; i < p.batches; ++i) one(i);
}

// Half types: each matrix is widened to float, multiplied, and the product narrowed.
template <class H>
struct HalfProduct {
  Problem p;        // as the inputs lie
  Problem dense;    // the same with both factors packed row by row
  Bytes a, b, out;  // sizes of the float copies

  explicit HalfProduct(Problem problem) : p(std::move(problem)), dense(p) {
    dense.a.row_stride = p.a.columns, dense.a.column_stride = 1;
    dense.b.row_stride = p.b.columns, dense.b.column_stride = 1;
    const auto size = [](std::int64_t elements) {
      return round_up({elements * 4}, buffer_alignment);
    };
    a = size(p.a.rows * p.a.columns), b = size(p.b.rows * p.b.columns),
    out = size(p.a.rows * p.b.columns);
  }
  static void pack(const MatrixLayout& m, const H* from, float* to) {
    parallel_for(m.rows, std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(m.columns, 1)),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i)
                     for (std::int64_t j = 0; j < m.columns; ++j)
                       to[i * m.columns + j] = from[i * m.row_stride + j * m.column_stride];
                 });
  }
  void operator()(const KernelArgs& args) const {
    float *wide_a = args.scratch<float>(), *wide_b = args.scratch<float>(a),
          *wide_out = args.scratch<float>(a + b);
    const std::int64_t count = p.a.rows * p.b.columns;
    for (std::int64_t i = 0; i < p.batches; ++i) {
      pack(p.a, args.in<H>(0) + p.offset(p.batch_a, i), wide_a);
      pack(p.b, args.in<H>(1) + p.offset(p.batch_b, i), wide_b);
      product<float>(dense, wide_a, wide_b, nullptr, wide_out);
      H* to = args.out<H>() + i * count;
      const H* bias = p.bias ? args.in<H>(2) : nullptr;
      parallel_for(
          p.a.rows, std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(p.b.columns, 1)),
          [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t r = begin; r < end; ++r)
              for (std::int64_t c = 0; c < p.b.columns; ++c)
                to[r * p.b.columns + c] =
                    H(wide_out[r * p.b.columns + c] + (bias ? static_cast<float>(bias[c]) : 0.0f));
          });
    }
  }
};

}  // namespace

Kernel bind_matmul_cpu(const KernelRequest& request, const MatmulAttributes& a) {
  const Problem problem(request, a);
  switch (request.out().dtype()) {
    case DType::float64:
      return {[problem](const KernelArgs& args) { run<double>(problem, args); }};
    case DType::float32:
      return {[problem](const KernelArgs& args) { run<float>(problem, args); }};
    case DType::float16: {
      const HalfProduct<Half> half(problem);
      return {half, half.a + half.b + half.out};
    }
    case DType::bfloat16: {
      const HalfProduct<BFloat16> half(problem);
      return {half, half.a + half.b + half.out};
    }
    default:
      request.no_kernel(request.out().dtype());
  }
}

}  // namespace ebb
