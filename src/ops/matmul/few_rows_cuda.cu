#include "ops/cuda/element.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/matmul/few_rows.h"
#include "ops/matmul/few_rows_cuda.h"
#include "ops/resident/steps.h"

namespace ebb::cuda {
namespace {

// Where results go, and what is added to them.
template <class S>
struct Target {
  const S *bias, *other;  // each may be null
  S* out;
  int rows;
  std::int64_t columns;

  __device__ void store(int row, std::int64_t column, float value) const {
    if (row >= rows || column >= columns) return;
    if (bias) value += widen(bias[column]);
    if (other) value += widen(other[row * columns + column]);
    out[row * columns + column] = narrow<S>(value);
  }
};

// Sums over a warp; every lane gets the same bits.
__device__ inline float warp_sum(float value, int from = 16, int to = 0) {
  for (int distance = from; distance > to; distance /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

// The inner axis of the matrix is in one piece: a block of four warps takes two columns of the
// result and divides the inner axis among its threads.
constexpr int line_threads = 128, line_columns = 2;

template <class S, int M>
__global__ void __launch_bounds__(line_threads)
    by_lines(const S* x, std::int64_t x_stride, const S* matrix, std::int64_t stride,
             std::int64_t inner, Target<S> target) {
  constexpr int n = pack<S>;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * line_columns;
  const S* lines[line_columns];
#pragma unroll
  for (int c = 0; c < line_columns; ++c)  // a column past the end repeats the last one
    lines[c] = matrix + (column + c < target.columns ? column + c : target.columns - 1) * stride;
  float sums[M][line_columns] = {};
#pragma unroll 2
  for (std::int64_t k = static_cast<std::int64_t>(threadIdx.x) * n; k < inner;
       k += line_threads * n) {
    float w[line_columns][n];
#pragma unroll
    for (int c = 0; c < line_columns; ++c) load_pack<S>(lines[c] + k, w[c]);
#pragma unroll
    for (int m = 0; m < M; ++m) {
      float values[n];
      load_pack<S>(x + (m < target.rows ? m : 0) * x_stride + k, values);
#pragma unroll
      for (int c = 0; c < line_columns; ++c)
#pragma unroll
        for (int i = 0; i < n; ++i) sums[m][c] += values[i] * w[c][i];
    }
  }
  __shared__ float parts[line_threads / 32][M][line_columns];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int c = 0; c < line_columns; ++c) {
      const float sum = warp_sum(sums[m][c]);
      if (lane == 0) parts[warp][m][c] = sum;
    }
  __syncthreads();
  if (threadIdx.x >= M * line_columns) return;
  const int m = static_cast<int>(threadIdx.x) / line_columns,
            c = static_cast<int>(threadIdx.x) % line_columns;
  float sum = parts[0][m][c];
  for (int i = 1; i < line_threads / 32; ++i) sum += parts[i][m][c];
  target.store(m, column + c, sum);
}

// The columns of the result are in one piece: a block of sixteen warps takes two packs of columns,
// 32 bytes of each row of the matrix, and divides the rows among pairs of threads.
constexpr int column_threads = 512, column_packs = 2;

template <class S, int M>
__global__ void __launch_bounds__(column_threads)
    by_columns(const S* x, std::int64_t x_stride, const S* matrix, std::int64_t stride,
               std::int64_t inner, Target<S> target) {
  constexpr int n = pack<S>, rows_at_once = column_threads / column_packs;
  const int which = static_cast<int>(threadIdx.x) % column_packs;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * column_packs + which) * n;
  const bool inside = column < target.columns;  // packs are whole: columns are a multiple of n
  float sums[M][n] = {};
  if (inside) {
#pragma unroll 4
    for (std::int64_t k = threadIdx.x / column_packs; k < inner; k += rows_at_once) {
      float w[n];
      load_pack<S>(matrix + k * stride + column, w);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        const float value = widen(x[(m < target.rows ? m : 0) * x_stride + k]);
#pragma unroll
        for (int i = 0; i < n; ++i) sums[m][i] += value * w[i];
      }
    }
  }
  __shared__ float parts[column_threads / 32][column_packs][M][n];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float sum = warp_sum(sums[m][i], 16, column_packs / 2);  // over lanes of one pack
      if (lane < column_packs) parts[warp][lane][m][i] = sum;
    }
  __syncthreads();
  constexpr int results = column_packs * M * n;
  for (int item = static_cast<int>(threadIdx.x); item < results; item += column_threads) {
    const int part = item / (M * n), m = item / n % M, i = item % n;
    float sum = parts[0][part][m][i];
    for (int w = 1; w < column_threads / 32; ++w) sum += parts[w][part][m][i];
    target.store(m, (static_cast<std::int64_t>(blockIdx.x) * column_packs + part) * n + i, sum);
  }
}

template <class S, int M>
std::function<void(const KernelArgs&)> kernel(const MatmulProblem& p, int bias, int other) {
  return [p, bias, other](const KernelArgs& args) {
    const Target<S> target{bias < 0 ? nullptr : args.in<S>(bias),
                           other < 0 ? nullptr : args.in<S>(other), args.out<S>(),
                           static_cast<int>(p.a.rows), p.b.columns};
    if (p.b.transposed())
      launch({args, "matmul", dim3(static_cast<unsigned>(ceil_div(p.b.columns, line_columns))),
              dim3(line_threads)},
             by_lines<S, M>, args.in<S>(0), p.a.row_stride, args.in<S>(1), p.b.column_stride,
             p.a.columns, target);
    else
      launch({args, "matmul",
              dim3(static_cast<unsigned>(ceil_div(p.b.columns, column_packs * pack<S>))),
              dim3(column_threads)},
             by_columns<S, M>, args.in<S>(0), p.a.row_stride, args.in<S>(1), p.b.row_stride,
             p.a.columns, target);
  };
}

// The same product as a step of a resident kernel.
resident::Product product(const MatmulProblem& p, int bias, int other, const KernelArgs& args) {
  const auto input = [&](int i) {
    return i < 0 ? nullptr : args.inputs[static_cast<std::size_t>(i)];
  };
  return {.rows = {.x = input(0), .stride = static_cast<std::int32_t>(p.a.row_stride)},
          .matrix = input(1),
          .bias = input(bias),
          .other = input(other),
          .out = args.outputs[0],
          .stride = p.b.transposed() ? p.b.column_stride : p.b.row_stride,
          .inner = static_cast<std::int32_t>(p.a.columns),
          .columns = static_cast<std::int32_t>(p.b.columns),
          .lines = p.b.transposed()};
}

template <class S, int M>
Kernel bind(const KernelRequest& request, const MatmulProblem& p, int bias, int other) {
  auto run = kernel<S, M>(p, bias, other);
  if constexpr (sizeof(S) != 2) return {std::move(run)};
  resident::Step step = resident::step(request, std::move(run));
  if (resident::takes_product(p.a.rows, p.a.columns))
    step.task = [p, bias, other](const KernelArgs& args) -> std::optional<resident::Task> {
      if (!resident::device_takes_products()) return {};
      return product(p, bias, other, args);
    };
  return {step};
}

template <class S>
std::optional<Kernel> bind_rows(const KernelRequest& request, const MatmulProblem& p, int bias,
                                int other) {
  const auto packed = [](std::int64_t elements) { return elements % pack<S> == 0; };
  const bool lines = p.b.transposed();
  const bool aligned =
      packed(request.in(1).offset) &&
      (lines ? packed(p.a.columns) && packed(p.b.column_stride) && packed(request.in(0).offset) &&
                   (p.a.rows == 1 || packed(p.a.row_stride))
             : packed(p.b.columns) && packed(p.b.row_stride));
  if (!aligned) return {};
  // Rows that are missing from a kernel's number of rows repeat the first and are not stored.
  if (p.a.rows == 1) return bind<S, 1>(request, p, bias, other);
  if (p.a.rows == 2) return bind<S, 2>(request, p, bias, other);
  if (p.a.rows <= 4) return bind<S, 4>(request, p, bias, other);
  return bind<S, 8>(request, p, bias, other);
}

}  // namespace

std::optional<Kernel> few_rows_kernel(const KernelRequest& request, const MatmulProblem& p,
                                      int bias, int other) {
  const DType dtype = request.in(0).dtype();
  if (!FewRowsProduct::takes(p, dtype) || request.out().dtype() != dtype) return {};
  switch (dtype) {
    case DType::float32:
      return bind_rows<float>(request, p, bias, other);
    case DType::float16:
      return bind_rows<Half>(request, p, bias, other);
    case DType::bfloat16:
      return bind_rows<BFloat16>(request, p, bias, other);
    default:
      return {};
  }
}

}  // namespace ebb::cuda
