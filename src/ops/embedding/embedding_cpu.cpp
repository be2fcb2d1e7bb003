#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "ebb/storage.h"
#include "ops/dispatch.h"
#include "ops/embedding/embedding.h"
#include "ops/pointwise/convert.h"

namespace ebb {
namespace {

// An id outside the table reads zeros, and is reported.
template <class T, class I>
void run_embedding(const KernelArgs& args, std::int64_t rows, std::int64_t columns,
                   std::int64_t count) {
  const T* table = args.in<T>(0);
  const I* ids = args.in<I>(1);
  T* out = args.out<T>();
  parallel_for(count, std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(columns, 1)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t n = begin; n < end; ++n) {
                   const std::int64_t id = ids[n];
                   if (id >= 0 && id < rows) {
                     std::copy_n(table + id * columns, columns, out + n * columns);
                   } else {
                     std::fill_n(out + n * columns, columns, T{});
                     args.fault->out_of_range(n, id, rows);
                   }
                 }
               });
}

// The positions of each id, as a linked list per row of the table: first[row], then next[], in
// increasing order, ending in -1. One thread sums each cell of the result in the order of positions
// and writes it once, so sums are deterministic.
template <class T, class I>
struct EmbeddingGrad {
  static constexpr std::int64_t tile = 256;  // columns summed at a time

  std::int64_t rows, columns, count;
  Bytes first_bytes, workspace;

  EmbeddingGrad(std::int64_t table_rows, std::int64_t table_columns, std::int64_t id_count)
      : rows(table_rows),
        columns(table_columns),
        count(id_count),
        first_bytes(round_up({rows * 8}, buffer_alignment)),
        workspace(first_bytes + Bytes{count * 8}) {}

  void operator()(const KernelArgs& args) const {
    const I* ids = args.in<I>(0);
    std::int64_t *first = args.scratch<std::int64_t>(),
                 *next = args.scratch<std::int64_t>(first_bytes);
    std::fill_n(first, rows, std::int64_t{-1});
    for (std::int64_t n = count - 1; n >= 0; --n) {
      const std::int64_t id = ids[n];
      if (id < 0 || id >= rows) {
        args.fault->out_of_range(n, id, rows);
        continue;
      }
      next[n] = first[id];
      first[id] = n;
    }
    // If the table is larger than the batch, most of the result is zeros: threads take rows and
    // write whole ranges. Otherwise they take columns, so that a few frequent ids do not occupy a
    // single thread.
    const T* g = args.in<T>(1);
    T* out = args.out<T>();
    if (rows > count)
      parallel_for(rows, std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(columns, 1)),
                   [&](std::int64_t begin, std::int64_t end) {
                     write(g, first, next, out, begin, end, 0, columns);
                   });
    else
      parallel_for(columns,
                   std::max<std::int64_t>(16, 16384 / std::max<std::int64_t>(rows + count, 1)),
                   [&](std::int64_t begin, std::int64_t end) {
                     write(g, first, next, out, 0, rows, begin, end);
                   });
  }

  void write(const T* g, const std::int64_t* first, const std::int64_t* next, T* out,
             std::int64_t row_begin, std::int64_t row_end, std::int64_t begin,
             std::int64_t end) const {
    for (std::int64_t row = row_begin; row < row_end; ++row) {
      T* to = out + row * columns;
      if (first[row] < 0) {
        std::memset(static_cast<void*>(to + begin), 0,
                    static_cast<std::size_t>(end - begin) * sizeof(T));
        continue;
      }
      for (std::int64_t c = begin; c < end; c += tile)
        add_rows(g + c, next, first[row], to + c, std::min(tile, end - c));
    }
  }

  // Half types are summed in float and rounded once.
  void add_rows(const T* g, const std::int64_t* next, std::int64_t n, T* to,
                std::int64_t width) const {
    Compute<T> sum[tile];
    for (std::int64_t k = 0; k < width; ++k) sum[k] = static_cast<Compute<T>>(g[n * columns + k]);
    for (n = next[n]; n >= 0; n = next[n])
      for (std::int64_t k = 0; k < width; ++k)
        sum[k] += static_cast<Compute<T>>(g[n * columns + k]);
    if constexpr (std::is_same_v<T, Compute<T>>)
      std::copy_n(sum, width, to);
    else
      narrow(sum, to, width);
  }
};

}  // namespace

Kernel bind_embedding_cpu(const KernelRequest& request, const NoAttributes&) {
  return dispatch_index(request, request.in(1).dtype(), [&](auto index) {
    return dispatch_size(request.out().dtype(), [&](auto element) {
      using T = typename decltype(element)::type;
      using I = typename decltype(index)::type;
      const Shape& table = request.in(0).shape();
      return Kernel{[rows = table[0], columns = table[1],
                     count = request.in(1).shape().elements()](const KernelArgs& args) {
        run_embedding<T, I>(args, rows, columns, count);
      }};
    });
  });
}

Kernel bind_embedding_grad_cpu(const KernelRequest& request, const EmbeddingGradAttributes& a) {
  return dispatch_index(request, request.in(0).dtype(), [&](auto index) {
    return dispatch_floating(request, request.out().dtype(), [&](auto element) {
      using T = typename decltype(element)::type;
      using I = typename decltype(index)::type;
      const EmbeddingGrad<T, I> kernel(a.rows, request.out().shape()[1],
                                       request.in(0).shape().elements());
      return Kernel{kernel, kernel.workspace};
    });
  });
}

}  // namespace ebb
