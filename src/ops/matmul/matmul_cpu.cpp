#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "ebb/storage.h"
#include "ops/dispatch.h"
#include "ops/matmul/bfloat16_product.h"
#include "ops/matmul/few_rows.h"
#include "ops/matmul/gemm.h"
#include "ops/pointwise/convert.h"

namespace ebb {
namespace {

using Problem = MatmulProblem;

template <class T>
void product(const Problem& p, const T* a, const T* b, const T* bias, T* out, int workers) {
  const std::int64_t rows = p.a.rows, columns = p.b.columns;
  if (bias)
    for (std::int64_t i = 0; i < rows; ++i) std::copy_n(bias, columns, out + i * columns);
  if (rows == 0 || columns == 0) return;
  if (p.a.columns == 0) {
    if (!bias) std::fill_n(out, rows * columns, T(0));
    return;
  }
  gemm(p.a, a, p.b, b, bias ? T(1) : T(0), out, columns, workers);
}

// Additions and multiplications of one matrix of the batch.
double operations(const Problem& p) {
  return 2.0 * static_cast<double>(p.a.rows) * static_cast<double>(p.a.columns) *
         static_cast<double>(p.b.columns);
}

// Many small products: one thread each. Few large ones: all threads on each.
bool one_thread_each(const Problem& p, int workers) {
  return p.batches >= workers && operations(p) < 2e8;
}

// The least number of such products that is worth a thread.
std::int64_t batch_grain(const Problem& p) {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(1e5 / std::max(operations(p), 1.0)));
}

template <class T>
void run(const Problem& p, const KernelArgs& args) {
  const auto one = [&](std::int64_t i, int workers) {
    product(p, args.in<T>(0) + p.offset(p.batch_a, i), args.in<T>(1) + p.offset(p.batch_b, i),
            p.bias ? args.in<T>(2) : nullptr, args.out<T>() + i * p.a.rows * p.b.columns, workers);
  };
  if (one_thread_each(p, threads()))
    parallel_for(p.batches, batch_grain(p), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) one(i, 1);
    });
  else
    for (std::int64_t i = 0; i < p.batches; ++i) one(i, threads());
}

// bfloat16 on a processor that multiplies it.
class BFloat16Batch {
 public:
  explicit BFloat16Batch(Problem problem)
      : p_(std::move(problem)),
        product_(p_.a.rows, p_.a.columns, p_.b.columns, BFloat16Product::Result::bfloat16),
        workers_(threads()),
        apart_(one_thread_each(p_, workers_) &&
               workers_ * product_.workspace() <= most_workspace_apart) {}
  Bytes workspace() const { return (apart_ ? workers_ : 1) * product_.workspace(); }

  void operator()(const KernelArgs& args) const {
    if (!apart_) {
      for (std::int64_t i = 0; i < p_.batches; ++i) one(args, i, args.workspace, workers_);
      return;
    }
    parallel_for_workers(p_.batches, batch_grain(p_), workers_,
                         [&](int worker, std::int64_t begin, std::int64_t end) {
                           std::byte* area = args.scratch<std::byte>(worker * product_.workspace());
                           for (std::int64_t i = begin; i < end; ++i) one(args, i, area, 1);
                         });
  }

 private:
  static constexpr Bytes most_workspace_apart = 8_MiB;

  void one(const KernelArgs& args, std::int64_t i, std::byte* area, int workers) const {
    product_({p_.a, args.in<BFloat16>(0) + p_.offset(p_.batch_a, i), p_.b,
              args.in<BFloat16>(1) + p_.offset(p_.batch_b, i)},
             p_.bias ? args.in<BFloat16>(2) : nullptr,
             args.out<BFloat16>() + i * p_.a.rows * p_.b.columns, p_.b.columns, area, workers);
  }

  Problem p_;
  BFloat16Product product_;
  int workers_;
  bool apart_;  // whether each thread computes whole products
};

// float16, and bfloat16 on other processors: tiles of both factors are widened to float and
// multiplied, and a tile of the result is narrowed when all its products are in it. Tiles are large
// enough for the products to outweigh the conversions, and small enough to take 8 MiB at most.
template <class H>
class HalfProduct {
 public:
  explicit HalfProduct(Problem problem)
      : p_(std::move(problem)),
        rows_(std::min(p_.a.rows, most_rows)),
        columns_(std::min(p_.b.columns, most_columns)),
        depth_(std::min(p_.a.columns, most_depth)) {
    const auto take = [&](std::int64_t elements) {
      const Bytes at = workspace_;
      workspace_ += round_up({elements * 4}, buffer_alignment);
      return at;
    };
    a_at_ = take(rows_ * depth_), b_at_ = take(depth_ * columns_);
    out_at_ = take(rows_ * columns_);
  }
  Bytes workspace() const { return workspace_; }

  void operator()(const KernelArgs& args) const {
    for (std::int64_t i = 0; i < p_.batches; ++i)
      for (std::int64_t column = 0; column < p_.b.columns; column += columns_)
        for (std::int64_t row = 0; row < p_.a.rows; row += rows_) tile(args, i, row, column);
  }

 private:
  static constexpr std::int64_t most_rows = 1024, most_columns = 1024, most_depth = 512;

  void tile(const KernelArgs& args, std::int64_t batch, std::int64_t row,
            std::int64_t column) const {
    float *a = args.scratch<float>(a_at_), *b = args.scratch<float>(b_at_),
          *out = args.scratch<float>(out_at_);
    const std::int64_t rows = std::min(rows_, p_.a.rows - row),
                       columns = std::min(columns_, p_.b.columns - column);
    if (p_.a.columns == 0) std::fill_n(out, rows * columns, 0.0f);
    for (std::int64_t k = 0; k < p_.a.columns; k += depth_) {
      const std::int64_t depth = std::min(depth_, p_.a.columns - k);
      const MatrixLayout wide_a =
          widened(p_.a, args.in<H>(0) + p_.offset(p_.batch_a, batch), row, k, rows, depth, a);
      const MatrixLayout wide_b =
          widened(p_.b, args.in<H>(1) + p_.offset(p_.batch_b, batch), k, column, depth, columns, b);
      gemm(wide_a, a, wide_b, b, k == 0 ? 0.0f : 1.0f, out, columns);
    }
    const H* bias = p_.bias ? args.in<H>(2) + column : nullptr;
    H* to = args.out<H>() + (batch * p_.a.rows + row) * p_.b.columns + column;
    parallel_for(rows, std::max<std::int64_t>(1, 16384 / columns),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t r = begin; r < end; ++r) {
                     float* from = out + r * columns;
                     if (bias)
                       for (std::int64_t c = 0; c < columns; ++c)
                         from[c] += static_cast<float>(bias[c]);
                     narrow(from, to + r * p_.b.columns, columns);
                   }
                 });
  }

  // Rows [row, row + rows) and columns [column, column + columns) of a matrix, in runs as they lie.
  static MatrixLayout widened(const MatrixLayout& m, const H* from, std::int64_t row,
                              std::int64_t column, std::int64_t rows, std::int64_t columns,
                              float* to) {
    from += row * m.row_stride + column * m.column_stride;
    const bool turned = m.transposed();
    const std::int64_t runs = turned ? columns : rows, length = turned ? rows : columns,
                       stride = turned ? m.column_stride : m.row_stride;
    parallel_for(runs, std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(length, 1)),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i)
                     widen(from + i * stride, to + i * length, length);
                 });
    return turned ? MatrixLayout::swapped(rows, columns) : MatrixLayout::plain(rows, columns);
  }

  Problem p_;
  std::int64_t rows_, columns_, depth_;  // of a tile
  Bytes a_at_, b_at_, out_at_, workspace_;
};

template <class T>
Kernel few_rows_kernel(const Problem& problem) {
  const FewRowsProduct product(problem);
  const bool bias = problem.bias;
  return {[product, bias](const KernelArgs& args) {
            product.run<T>(args.in<T>(0), args.in<T>(1), bias ? args.in<T>(2) : nullptr,
                           args.out<T>(), args.workspace);
          },
          product.workspace()};
}

}  // namespace

Kernel bind_matmul_cpu(const KernelRequest& request, const MatmulAttributes& a) {
  const Problem problem(request, a);
  const DType dtype = request.out().dtype();
  if (FewRowsProduct::takes(problem, dtype))
    return dtype == f32   ? few_rows_kernel<float>(problem)
           : dtype == f16 ? few_rows_kernel<MachineHalf>(problem)
                          : few_rows_kernel<BFloat16>(problem);
  if (dtype == f32 || dtype == f64)  // others are multiplied in tiles
    require_gemm_sizes(request.op.name(), problem.a, problem.b, problem.b.columns);
  switch (dtype) {
    case DType::float64:
      return {[problem](const KernelArgs& args) { run<double>(problem, args); }};
    case DType::float32:
      return {[problem](const KernelArgs& args) { run<float>(problem, args); }};
    case DType::float16: {
      const HalfProduct<MachineHalf> half(problem);
      return {half, half.workspace()};
    }
    case DType::bfloat16: {
      if (BFloat16Product::available()) {
        const BFloat16Batch batch(problem);
        return {batch, batch.workspace()};
      }
      const HalfProduct<BFloat16> half(problem);
      return {half, half.workspace()};
    }
    default:
      request.no_kernel(dtype);
  }
}

}  // namespace ebb
