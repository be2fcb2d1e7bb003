// A multithreaded BLAS divides the result by the number of threads. Elements at the edges of a part
// are computed by other instructions than those in the middle, and so have other bits. Here parts
// begin at multiples of `step`, which is a multiple of all kernels' block sizes, and each part is
// computed by one thread: every element is computed as in the undivided product. Some kernels also
// depend on the size of a part; there the parts depend on the product alone.
#include "ops/matmul/gemm.h"

#include <cblas.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <type_traits>

#include "core/parallel.h"
#include "ops/library_size.h"

namespace ebb {
namespace {

constexpr std::int64_t step = 96;  // of rows and columns; a multiple of all block sizes of kernels

// The least number of multiplications of a part. OpenBLAS uses other kernels for products of up to
// 1e6, and all parts of a product must use the same kernels.
constexpr double least_work = 1.05e6;

// The least number of rows or columns of a part: matrix-vector products use other kernels too.
constexpr std::int64_t thinnest = 8;

// The transposed product, column by column: the same numbers in the same places. OpenBLAS has
// further kernels for small products row by row.
void one(const MatrixLayout& a, const float* x, const MatrixLayout& b, const float* y, float beta,
         float* out, std::int64_t out_lead) {
  cblas_sgemm(CblasColMajor, b.transposed() ? CblasTrans : CblasNoTrans,
              a.transposed() ? CblasTrans : CblasNoTrans, static_cast<int>(b.columns),
              static_cast<int>(a.rows), static_cast<int>(a.columns), 1.0f, y,
              static_cast<int>(b.leading()), x, static_cast<int>(a.leading()), beta, out,
              static_cast<int>(out_lead));
}

void one(const MatrixLayout& a, const double* x, const MatrixLayout& b, const double* y,
         double beta, double* out, std::int64_t out_lead) {
  cblas_dgemm(CblasColMajor, b.transposed() ? CblasTrans : CblasNoTrans,
              a.transposed() ? CblasTrans : CblasNoTrans, static_cast<int>(b.columns),
              static_cast<int>(a.rows), static_cast<int>(a.columns), 1.0, y,
              static_cast<int>(b.leading()), x, static_cast<int>(a.leading()), beta, out,
              static_cast<int>(out_lead));
}

// Parts of a result: `rows` of them one below the other, `columns` side by side.
struct Grid {
  std::int64_t rows = 1, columns = 1;
};

// A count cut into parts that begin at multiples of `step`: all of size `most` but the last.
struct Cut {
  std::int64_t most, last;
  Cut(std::int64_t count, std::int64_t parts)
      : most((count + parts * step - 1) / (parts * step) * step),
        last(count - (parts - 1) * most) {}
};

// The grid of at most `parts` parts that minimises the largest part, and then the memory read: a
// part reads its rows and its columns. `inner`: multiplications per element.
Grid grid_of(std::int64_t rows, std::int64_t columns, double inner, std::int64_t parts) {
  Grid best;
  std::int64_t least_area = rows * columns, least_edge = rows + columns;
  for (std::int64_t r = 1; r <= parts; ++r)
    for (std::int64_t c = parts / r; c > 0; --c) {
      const Cut down(rows, r), across(columns, c);
      if ((r > 1 && down.last < thinnest) || (c > 1 && across.last < thinnest)) continue;
      const double smallest = static_cast<double>(std::min(down.last, down.most)) *
                              static_cast<double>(std::min(across.last, across.most)) * inner;
      if (r * c > 1 && smallest < least_work) continue;
      const std::int64_t area = down.most * across.most, edge = down.most + across.most;
      if (area > least_area || (area == least_area && edge >= least_edge)) continue;
      best = {r, c}, least_area = area, least_edge = edge;
    }
  return best;
}

// Whether the results of OpenBLAS's kernels for this type and processor do not depend on the size
// of a part, so that there may be as many parts as threads.
template <class T>
bool parts_change_no_bit() {
  if constexpr (std::is_same_v<T, double>) return false;
  static const bool known = [] {
    const std::string_view core = openblas_get_corename();
    return core == "SkylakeX" || core == "Cooperlake" || core == "Sapphirerapids";
  }();
  return known;
}

// The most parts of a product, where they are not as many as threads: so many that machines with
// more processors gain by large products, which divide better.
constexpr int parts_for(double work) {
  constexpr double large = 6.4e7;
  return work < large ? 8 : 16;
}

template <class T>
void shared(const MatrixLayout& a, const T* x, const MatrixLayout& b, const T* y, T beta, T* out,
            std::int64_t out_lead, int workers) {
  const double inner = static_cast<double>(a.columns);
  const double work = static_cast<double>(a.rows) * static_cast<double>(b.columns) * inner;
  const int most = parts_change_no_bit<T>() ? workers : parts_for(work);
  const auto parts =
      static_cast<std::int64_t>(std::min(static_cast<double>(most), work / least_work));
  const Grid grid = parts > 1 ? grid_of(a.rows, b.columns, inner, parts) : Grid{};
  if (grid.rows * grid.columns == 1) {
    const LibraryThreads alone(1);
    return one(a, x, b, y, beta, out, out_lead);
  }
  const std::int64_t height = Cut(a.rows, grid.rows).most,
                     width = Cut(b.columns, grid.columns).most;
  std::optional<LibraryThreads> alone;  // inside a parallel region, OpenBLAS takes one thread
  if (workers == 1) alone.emplace(1);
  parallel_for_workers(
      grid.rows * grid.columns, 1, workers, [&](int, std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t row = i / grid.columns * height, column = i % grid.columns * width;
          MatrixLayout top = a, left = b;
          top.rows = std::min(height, a.rows - row);
          left.columns = std::min(width, b.columns - column);
          one(top, x + row * a.row_stride, left, y + column * b.column_stride, beta,
              out + row * out_lead + column, out_lead);
        }
      });
}

}  // namespace

void require_gemm_sizes(std::string_view op, const MatrixLayout& a, const MatrixLayout& b,
                        std::int64_t out_lead) {
  require_library_sizes(op, {{"rows", a.rows},
                             {"the inner size", a.columns},
                             {"columns", b.columns},
                             {"a stride of the first factor", a.leading()},
                             {"a stride of the second factor", b.leading()},
                             {"the stride of the result", out_lead}});
}

void gemm(const MatrixLayout& a, const float* x, const MatrixLayout& b, const float* y, float beta,
          float* out, std::int64_t out_lead, int workers) {
  shared(a, x, b, y, beta, out, out_lead, workers);
}

void gemm(const MatrixLayout& a, const double* x, const MatrixLayout& b, const double* y,
          double beta, double* out, std::int64_t out_lead, int workers) {
  shared(a, x, b, y, beta, out, out_lead, workers);
}

}  // namespace ebb
