// Rows read from a table, and rows added back into one.
//
// The gradient sorts the ids with a stable sort and divides the sorted list into tiles of equal
// length, so that a frequent id does not occupy a single block. A run of equal ids within a tile is
// summed and written; a run across tiles leaves a partial sum in each, and the tile in which it
// begins adds them in order. All sums have a fixed order, so results are deterministic.
#include "ops/cuda/element.cuh"
#include "ops/embedding/embedding.h"
#include "ops/embedding/stable_sort.cuh"

namespace ebb {
namespace {

using namespace cuda;

// One block per id, with as many threads as its row has units, up to 256.
template <class U>
__global__ void embedding_kernel(const U* table, Indices ids, U* out, std::int64_t rows,
                                 std::int64_t units, FaultSlot fault) {
  const std::int64_t n = blockIdx.x, id = ids[n];
  const bool inside = id >= 0 && id < rows;
  for (std::int64_t i = threadIdx.x; i < units; i += blockDim.x)
    out[n * units + i] = inside ? table[id * units + i] : U{};
  if (!inside && threadIdx.x == 0) fault.out_of_range(n, id, rows);
}

template <class U>
void run_embedding(const KernelArgs& args, DType index, std::int64_t rows, std::int64_t row_bytes,
                   std::int64_t count) {
  const std::int64_t units = row_bytes / static_cast<std::int64_t>(sizeof(U));
  const std::int64_t threads = std::min<std::int64_t>(256, ceil_div(units, 32) * 32);
  if (units == 0) return;
  launch(
      {args, "embedding", dim3(static_cast<unsigned>(count)), dim3(static_cast<unsigned>(threads))},
      embedding_kernel<U>, args.in<U>(0), Indices(args.inputs[1], index), args.out<U>(), rows,
      units, FaultSlot(args));
}

constexpr int tile = 32;         // sorted ids of a block
constexpr int sum_threads = 64;  // each with its columns
constexpr int ahead = 4;         // rows read before the first is added

// The sorted ids, and the places of their runs.
struct Runs {
  sorting::Pairs sorted;
  std::int64_t count, rows;

  __device__ std::int64_t tile_end(std::int64_t t) const {
    return (t + 1) * tile < count ? (t + 1) * tile : count;
  }
  // Whether the run at the beginning of tile t began in an earlier tile; whether the run at its end
  // continues in the next one.
  __device__ bool began_before(std::int64_t t) const {
    return t > 0 && sorted.keys[t * tile - 1] == sorted.keys[t * tile];
  }
  __device__ bool goes_on(std::int64_t t) const {
    const std::int64_t end = tile_end(t);
    return end < count && sorted.keys[end] == sorted.keys[end - 1];
  }
};

// `width` is the number of columns per thread. `parts` is (tiles, 2, columns): sums of the run that
// began before the tile and of the run that continues after it.
template <class S, int width>
__global__ void __launch_bounds__(sum_threads)
    sum_tiles(Runs runs, const S* g, S* out, Compute<S>* parts, std::int64_t columns) {
  using T = Compute<S>;
  const std::int64_t t = blockIdx.x, begin = t * tile, end = runs.tile_end(t);
  const std::int64_t column =
      (static_cast<std::int64_t>(blockIdx.y) * sum_threads + threadIdx.x) * width;
  if (column >= columns) return;
  const bool began_before = runs.began_before(t), goes_on = runs.goes_on(t);
  const std::uint32_t first_key = runs.sorted.keys[begin], last_key = runs.sorted.keys[end - 1];
  T sum[width] = {};
  const auto finish = [&](std::uint32_t key) {
    if (key >= runs.rows) return;
    const bool early = key == first_key && began_before, late = key == last_key && goes_on;
    if (early || late) {
      T* to = parts + (t * 2 + (early ? 0 : 1)) * columns + column;
#pragma unroll
      for (int k = 0; k < width; ++k) to[k] = sum[k];
    } else {
      S* to = out + key * columns + column;
      if constexpr (width > 1)
        store_pack(to, sum);
      else
        *to = narrow<S>(sum[0]);
    }
  };
  for (std::int64_t i = begin; i < end; i += ahead) {
    T values[ahead][width];
#pragma unroll
    for (int a = 0; a < ahead; ++a)
      if (i + a < end) {
        const S* from = g + runs.sorted.positions[i + a] * columns + column;
        if constexpr (width > 1)
          load_pack(from, values[a]);
        else
          values[a][0] = widen(*from);
      }
#pragma unroll
    for (int a = 0; a < ahead; ++a)
      if (i + a < end) {
        const std::uint32_t key = runs.sorted.keys[i + a];
#pragma unroll
        for (int k = 0; k < width; ++k) sum[k] += values[a][k];
        if (i + a + 1 == end || runs.sorted.keys[i + a + 1] != key) {
          finish(key);
#pragma unroll
          for (int k = 0; k < width; ++k) sum[k] = T(0);
        }
      }
  }
}

// For each tile in which a longer run begins: the total of the run.
template <class S>
__global__ void __launch_bounds__(sum_threads)
    join_tiles(Runs runs, const Compute<S>* parts, S* out, std::int64_t columns) {
  const std::int64_t t = blockIdx.x;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.y) * sum_threads + threadIdx.x;
  const std::uint32_t key = runs.sorted.keys[runs.tile_end(t) - 1];
  if (column >= columns || key >= runs.rows || !runs.goes_on(t)) return;
  if (runs.sorted.keys[t * tile] == key && runs.began_before(t)) return;
  Compute<S> sum = parts[(t * 2 + 1) * columns + column];
  for (std::int64_t next = t + 1;; ++next) {
    sum += parts[next * 2 * columns + column];
    if (runs.sorted.keys[runs.tile_end(next) - 1] != key || !runs.goes_on(next)) break;
  }
  out[key * columns + column] = narrow<S>(sum);
}

template <class S>
struct Gradient {
  std::int64_t rows, columns, count, tiles;
  DType index;
  StableSort sort;

  Gradient(std::int64_t table_rows, std::int64_t table_columns, std::int64_t id_count, DType dtype)
      : rows(table_rows),
        columns(table_columns),
        count(id_count),
        tiles(ceil_div(id_count, tile)),
        index(dtype),
        sort(id_count, table_rows) {}

  Bytes workspace() const {
    return sort.workspace() +
           tiles * 2 * columns * Bytes{static_cast<std::int64_t>(sizeof(Compute<S>))};
  }

  void operator()(const KernelArgs& args) const {
    S* out = args.out<S>();
    EBB_CUDA_CHECK(cudaMemsetAsync(out, 0, static_cast<std::size_t>(rows * columns) * sizeof(S),
                                   stream_of(args)));
    const Runs runs{sort.run(args, Indices(args.inputs[0], index), {}), count, rows};
    Compute<S>* parts = args.scratch<Compute<S>>(sort.workspace());
    const S* g = args.in<S>(1);
    const auto grid = [&](std::int64_t width) {
      return dim3(static_cast<unsigned>(tiles),
                  static_cast<unsigned>(ceil_div(columns, sum_threads * width)));
    };
    const bool packs = sizeof(S) <= 4 && columns % pack<S> == 0 && aligned_for_packs(g, out, parts);
    if (packs)
      launch({args, "embedding_grad", grid(pack<S>), dim3(sum_threads)}, sum_tiles<S, pack<S>>,
             runs, g, out, parts, columns);
    else
      launch({args, "embedding_grad", grid(1), dim3(sum_threads)}, sum_tiles<S, 1>, runs, g, out,
             parts, columns);
    launch({args, "embedding_grad", grid(1), dim3(sum_threads)}, join_tiles<S>, runs, parts, out,
           columns);
  }
};

}  // namespace

Kernel bind_embedding_cuda(const KernelRequest& request, const NoAttributes&) {
  const Shape& table = request.in(0).shape();
  return {[index = index_dtype(request, 1), rows = table[0],
           row_bytes = table[1] * size_of(request.in(0).dtype()).count,
           count = request.in(1).shape().elements()](const KernelArgs& args) {
    const bool packs = row_bytes % 16 == 0 &&
                       reinterpret_cast<std::uintptr_t>(args.inputs[0]) % 16 == 0 &&
                       reinterpret_cast<std::uintptr_t>(args.outputs[0]) % 16 == 0;
    if (packs)
      run_embedding<uint4>(args, index, rows, row_bytes, count);
    else if (row_bytes % 2 == 0)
      run_embedding<std::uint16_t>(args, index, rows, row_bytes, count);
    else
      run_embedding<std::uint8_t>(args, index, rows, row_bytes, count);
  }};
}

Kernel bind_embedding_grad_cuda(const KernelRequest& request, const EmbeddingGradAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const Gradient<S> gradient(a.rows, request.out().shape()[1], request.in(0).shape().elements(),
                               index_dtype(request, 0));
    return Kernel{gradient, gradient.workspace()};
  });
}

}  // namespace ebb
