#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "ebb/storage.h"
#include "ops/dispatch.h"
#include "ops/matmul/few_rows.h"
#include "ops/matmul/gemm.h"
#include "ops/matmul/product.h"
#include "ops/pointwise/convert.h"
#include "ops/workspace_areas.h"

namespace ebb {
namespace {

using Problem = MatmulProblem;

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

// The products of a batch, by a class such as MatrixProduct.
template <class T, class Product>
class Batch {
 public:
  Batch(Problem problem, Product product)
      : p_(std::move(problem)),
        product_(std::move(product)),
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
    product_.write({p_.a, args.in<T>(0) + p_.offset(p_.batch_a, i), p_.b,
                    args.in<T>(1) + p_.offset(p_.batch_b, i)},
                   p_.bias ? args.in<T>(2) : nullptr, args.out<T>() + i * p_.a.rows * p_.b.columns,
                   p_.b.columns, area, workers);
  }

  Problem p_;
  Product product_;
  int workers_;
  bool apart_;  // whether each thread computes whole products
};

template <class T>
Kernel batch_kernel(const Problem& p) {
  const Batch<T, MatrixProduct<T>> batch(p, MatrixProduct<T>(p.a.rows, p.a.columns, p.b.columns));
  return {batch, batch.workspace()};
}

Kernel packed_bfloat16_kernel(const Problem& p) {
  using Product = PackedProduct<BFloat16>;
  const Batch<BFloat16, Product> batch(
      p, Product(p.a.rows, p.a.columns, p.b.columns, Product::Result::numbers));
  return {batch, batch.workspace()};
}

// float16, and bfloat16 on other processors: tiles of both factors are widened to float and
// multiplied, and a tile of the result is narrowed when all its products are in it. Tiles are large
// enough for the products to outweigh the conversions, and small enough to take 11 MiB at most.
template <class H>
class HalfProduct {
 public:
  explicit HalfProduct(Problem problem)
      : p_(std::move(problem)),
        rows_(std::min(p_.a.rows, most_rows)),
        columns_(std::min(p_.b.columns, most_columns)),
        depth_(std::min(p_.a.columns, most_depth)),
        product_(rows_, depth_, columns_) {
    a_at_ = areas_.add<float>(rows_ * depth_), b_at_ = areas_.add<float>(depth_ * columns_);
    out_at_ = areas_.add<float>(rows_ * columns_);
    product_at_ = areas_.add(product_.workspace());
  }
  Bytes workspace() const { return areas_.total(); }

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
      product_.sum({wide_a, a, wide_b, b}, k == 0 ? Store::overwrite : Store::add, out, columns,
                   args.scratch<std::byte>(product_at_), threads());
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
  MatrixProduct<float> product_;
  WorkspaceAreas areas_;
  Bytes a_at_, b_at_, out_at_, product_at_;
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
      return batch_kernel<double>(problem);
    case DType::float32:
      return batch_kernel<float>(problem);
    case DType::float16: {
      const HalfProduct<MachineHalf> half(problem);
      return {half, half.workspace()};
    }
    case DType::bfloat16: {
      if (PackedProduct<BFloat16>::available()) return packed_bfloat16_kernel(problem);
      const HalfProduct<BFloat16> half(problem);
      return {half, half.workspace()};
    }
    default:
      request.no_kernel(dtype);
  }
}

}  // namespace ebb
