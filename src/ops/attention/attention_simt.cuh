// Attention in plain arithmetic. A block of 256 threads, 16 × 16, works on tiles of 64 queries × 64
// keys; thread (ty, tx) has the scores of rows ty + 16 i and columns tx + 16 j, i and j from 0 to
// 3. A row of a tile lies within half a warp, so that maxima and sums over keys need only warp
// shuffles.
//
// Each block computes 64 columns of the result and recomputes the scores, so that only loop lengths
// depend on the head size.
//
// Each dtype is instantiated in a source of its own, so that the compiler can work on them in
// parallel.
#pragma once

#include "ops/attention/delta.cuh"
#include "ops/attention/first_keys.cuh"

namespace ebb::attention {
namespace {

using namespace cuda;

constexpr int tile = 64, depth = 32, threads = 256, per = tile / 16;

template <class T>
struct Tiles {
  T a[depth][tile + 1], b[depth][tile + 1];  // parts of two factors, transposed
  T weights[tile][tile + 1], dscores[tile][tile + 1];
  T values[tile][tile + 1];
  std::uint32_t kept[tile / DropoutMask::edge][tile / DropoutMask::edge][DropoutMask::block_groups];
};

struct Lane {
  int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
};

// Some rows of a tensor of rows.
template <class S>
struct Rows {
  const S* data;
  std::int64_t stride;
  int count, columns;  // rows from the first on, and elements of each

  __device__ Compute<S> get(int row, int column) const {
    return row < count && column < columns ? widen(data[row * stride + column]) : Compute<S>(0);
  }
};

// out = a · bᵀ for 64 rows of each.
template <class S, class T>
__device__ void row_products(Tiles<T>& tiles, const Rows<S>& a, const Rows<S>& b, Lane lane,
                             T (&out)[per][per]) {
#pragma unroll
  for (int i = 0; i < per; ++i)
#pragma unroll
    for (int j = 0; j < per; ++j) out[i][j] = T(0);
  for (int from = 0; from < a.columns; from += depth) {
    __syncthreads();
    for (int n = static_cast<int>(threadIdx.x); n < tile * depth; n += threads) {
      const int row = n / depth, column = n % depth;
      tiles.a[column][row] = a.get(row, from + column);
      tiles.b[column][row] = b.get(row, from + column);
    }
    __syncthreads();
#pragma unroll 8
    for (int d = 0; d < depth; ++d) {
      T x[per], y[per];
#pragma unroll
      for (int i = 0; i < per; ++i) x[i] = tiles.a[d][lane.ty + 16 * i];
#pragma unroll
      for (int j = 0; j < per; ++j) y[j] = tiles.b[d][lane.tx + 16 * j];
#pragma unroll
      for (int i = 0; i < per; ++i)
#pragma unroll
        for (int j = 0; j < per; ++j) out[i][j] += x[i] * y[j];
    }
  }
}

// 64 columns, from `first` on, of 64 rows.
template <class S, class T>
__device__ void load_values(Tiles<T>& tiles, const Rows<S>& rows, int first) {
  __syncthreads();
  for (int n = static_cast<int>(threadIdx.x); n < tile * tile; n += threads)
    tiles.values[n / tile][n % tile] = rows.get(n / tile, first + n % tile);
  __syncthreads();
}

enum class Side { rows, columns };

// out += m · values, or mᵀ · values.
template <Side side, class T>
__device__ void add_products(const T (&m)[tile][tile + 1], const T (&values)[tile][tile + 1],
                             Lane lane, T (&out)[per][per]) {
#pragma unroll 8
  for (int d = 0; d < tile; ++d) {
    T x[per], y[per];
#pragma unroll
    for (int i = 0; i < per; ++i)
      x[i] = side == Side::rows ? m[lane.ty + 16 * i][d] : m[d][lane.ty + 16 * i];
#pragma unroll
    for (int j = 0; j < per; ++j) y[j] = values[d][lane.tx + 16 * j];
#pragma unroll
    for (int i = 0; i < per; ++i)
#pragma unroll
      for (int j = 0; j < per; ++j) out[i][j] += x[i] * y[j];
  }
}

// Draws the dropout mask for the tile at (i0, j0), one thread per group. Needs a barrier between
// the last read of the mask and this call, and another before the next read.
template <class S, class T>
__device__ void draw(Tiles<T>& tiles, const ScoreRules<S>& rules, int i0, int j0) {
  constexpr int groups = DropoutMask::block_groups, across = tile / DropoutMask::edge;
  const int n = static_cast<int>(threadIdx.x);
  if (!rules.drops() || n >= across * across * groups) return;
  const int r = n % groups, by = n / groups / across, bx = n / groups % across;
  tiles.kept[by][bx][r] = rules.kept(i0 + by * DropoutMask::edge + r, j0 + bx * DropoutMask::edge);
}

// The factor of dropout for the lane's score (i, j).
template <class S, class T>
__device__ T drawn_factor(const Tiles<T>& tiles, const ScoreRules<S>& rules, int i, int j,
                          Lane lane) {
  const std::uint32_t group = tiles.kept[i][j][lane.ty % DropoutMask::block_groups];
  return group >> DropoutMask::bit(lane.ty, lane.tx) & 1u ? rules.keep : T(0);
}

template <class T>
__device__ void put(T (&m)[tile][tile + 1], const T (&values)[per][per], Lane lane) {
#pragma unroll
  for (int i = 0; i < per; ++i)
#pragma unroll
    for (int j = 0; j < per; ++j) m[lane.ty + 16 * i][lane.tx + 16 * j] = values[i][j];
}

template <class S, class T>
__device__ void write_tile(S* out, std::int64_t stride, int rows, int first, int columns,
                           const T (&values)[per][per], T factor, Lane lane) {
#pragma unroll
  for (int i = 0; i < per; ++i)
#pragma unroll
    for (int j = 0; j < per; ++j) {
      const int row = lane.ty + 16 * i, column = first + lane.tx + 16 * j;
      if (row < rows && column < columns)
        out[row * stride + column] = narrow<S>(values[i][j] * factor);
    }
}

// Over the 16 threads that share a row.
template <class T, class Join>
__device__ T join_row(T value, const Join& join) {
#pragma unroll
  for (int distance = 8; distance > 0; distance /= 2)
    value = join(value, __shfl_xor_sync(0xffffffffu, value, distance));
  return value;
}

__device__ inline float larger(float a, float b) { return b > a ? b : a; }
__device__ inline double larger(double a, double b) { return b > a ? b : a; }

// blockIdx: queries by tiles and columns of values by 64, heads, batches.
template <class S>
__global__ void __launch_bounds__(threads)
    forward_kernel(const __grid_constant__ CudaProblem p, ForwardArgs<S> a) {
  using T = Compute<S>;
  extern __shared__ unsigned char memory[];
  Tiles<T>& tiles = *reinterpret_cast<Tiles<T>*>(memory);
  const Lane lane;
  const int chunks = (p.value_size + tile - 1) / tile > 0 ? (p.value_size + tile - 1) / tile : 1;
  const int first = static_cast<int>(blockIdx.x) / chunks * tile;
  const int column = static_cast<int>(blockIdx.x) % chunks * tile;
  const int h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int kv = h / p.group(), rows = p.queries - first < tile ? p.queries - first : tile;
  const Rows<S> q{a.q + p.q.at(b, h) + first * p.q.row, p.q.row, rows, p.size};
  const ScoreRules<S> rules(p, a.mask, a.control->random, b, h);
  T out[per][per] = {}, most[per], total[per] = {};
#pragma unroll
  for (int i = 0; i < per; ++i) most[i] = -infinity<T>();
  const int begin = FirstKeys<false>(p, a.bounds, b).first_key(p, first, first + rows, tile);
  const int visible = p.visible_keys(first + rows);
  for (int j0 = begin; j0 < visible; j0 += tile) {
    const int count = visible - j0 < tile ? visible - j0 : tile;
    const Rows<S> k{a.k + p.k.at(b, kv) + j0 * p.k.row, p.k.row, count, p.size};
    const Rows<S> v{a.v + p.v.at(b, kv) + j0 * p.v.row, p.v.row, count, p.value_size};
    T scores[per][per];
    draw(tiles, rules, first, j0);
    row_products(tiles, q, k, lane, scores);
#pragma unroll
    for (int i = 0; i < per; ++i) {
      const int query = first + lane.ty + 16 * i;
      T top = most[i];
#pragma unroll
      for (int j = 0; j < per; ++j) {
        scores[i][j] =
            rules.masked(scores[i][j] * static_cast<T>(p.scale), query, j0 + lane.tx + 16 * j);
        top = larger(top, scores[i][j]);
      }
      top = join_row(top, [](T x, T y) { return larger(x, y); });
      const T base = top == -infinity<T>() ? T(0) : top;  // no key yet: any finite base will do
      const T shrink = exponential(most[i] - base);
      T sum = T(0);
#pragma unroll
      for (int j = 0; j < per; ++j) {
        scores[i][j] = exponential(scores[i][j] - base);
        sum += scores[i][j];
        if (rules.drops()) scores[i][j] *= drawn_factor(tiles, rules, i, j, lane);
        out[i][j] *= shrink;
      }
      total[i] = total[i] * shrink + join_row(sum, [](T x, T y) { return x + y; });
      most[i] = top;
    }
    put(tiles.weights, scores, lane);
    load_values(tiles, v, column);
    add_products<Side::rows>(tiles.weights, tiles.values, lane, out);
  }
  const std::int64_t row0 = (static_cast<std::int64_t>(b) * p.heads + h) * p.queries + first;
#pragma unroll
  for (int i = 0; i < per; ++i) {
    const T inverse = total[i] == T(0) ? T(0) : T(1) / total[i];
#pragma unroll
    for (int j = 0; j < per; ++j) out[i][j] *= inverse;
    if (column == 0 && lane.tx == 0 && lane.ty + 16 * i < rows)
      a.logsumexp[row0 + lane.ty + 16 * i] =
          total[i] == T(0) ? -infinity<T>()
                           : most[i] + static_cast<T>(logarithm(static_cast<double>(total[i])));
  }
  write_tile(a.o.at(p.query_token(b, first), h, p.value_size), a.o.row, rows, column, p.value_size,
             out, T(1), lane);
}

// Turns scores, and gradients of the weights after dropout, of the tile at (i0, j0) into weights
// and gradients of the scores, both in shared memory.
template <class S, class T>
__device__ void softmax_gradient(const CudaProblem& p, const BackwardArgs<S>& a,
                                 const ScoreRules<S>& rules, Tiles<T>& tiles, std::int64_t row0,
                                 int i0, int j0, T (&scores)[per][per], T (&grads)[per][per],
                                 Lane lane) {
#pragma unroll
  for (int i = 0; i < per; ++i) {
    const int query = i0 + lane.ty + 16 * i;
    const bool inside = query < p.queries;
    const T saved = inside ? a.logsumexp[row0 + query] : -infinity<T>();
    const T delta = inside ? a.delta[row0 + query] : T(0);
#pragma unroll
    for (int j = 0; j < per; ++j) {
      const int key = j0 + lane.tx + 16 * j;
      const T score = rules.masked(scores[i][j] * static_cast<T>(p.scale), query, key);
      // A query without keys has no weights.
      T weight = saved == -infinity<T>() ? T(0) : exponential(score - saved);
      const T factor = rules.drops() ? drawn_factor(tiles, rules, i, j, lane) : T(1);
      grads[i][j] = weight * (grads[i][j] * factor - delta);
      scores[i][j] = weight * factor;
    }
  }
  __syncthreads();
  put(tiles.weights, scores, lane);
  put(tiles.dscores, grads, lane);
}

// blockIdx: keys by tiles and columns by 64, key heads, batches.
template <class S>
__global__ void __launch_bounds__(threads)
    keys_kernel(const __grid_constant__ CudaProblem p, BackwardArgs<S> a) {
  using T = Compute<S>;
  extern __shared__ unsigned char memory[];
  Tiles<T>& tiles = *reinterpret_cast<Tiles<T>*>(memory);
  const Lane lane;
  const int widest = p.size > p.value_size ? p.size : p.value_size;
  const int chunks = (widest + tile - 1) / tile;
  const int j0 = static_cast<int>(blockIdx.x) / chunks * tile;
  const int column = static_cast<int>(blockIdx.x) % chunks * tile;
  const int kv = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int count = p.keys - j0 < tile ? p.keys - j0 : tile;
  const Rows<S> k{a.k + p.k.at(b, kv) + j0 * p.k.row, p.k.row, count, p.size};
  const Rows<S> v{a.v + p.v.at(b, kv) + j0 * p.v.row, p.v.row, count, p.value_size};
  T dk[per][per] = {}, dv[per][per] = {};
  const int end = FirstKeys<false>(p, a.bounds, b).end_query(p, j0 + count - 1);
  for (int h = kv * p.group(); h < (kv + 1) * p.group(); ++h) {
    const ScoreRules<S> rules(p, a.mask, a.control->random, b, h);
    const std::int64_t row0 = (static_cast<std::int64_t>(b) * p.heads + h) * p.queries;
    for (int i0 = p.first_query(j0) / tile * tile; i0 < end; i0 += tile) {
      const int rows = p.queries - i0 < tile ? p.queries - i0 : tile;
      const Rows<S> q{a.q + p.q.at(b, h) + i0 * p.q.row, p.q.row, rows, p.size};
      const Rows<S> g{a.grad + p.grad.at(b, h) + i0 * p.grad.row, p.grad.row, rows, p.value_size};
      T scores[per][per], grads[per][per];
      draw(tiles, rules, i0, j0);
      row_products(tiles, q, k, lane, scores);
      row_products(tiles, g, v, lane, grads);
      softmax_gradient(p, a, rules, tiles, row0, i0, j0, scores, grads, lane);
      load_values(tiles, g, column);
      add_products<Side::columns>(tiles.weights, tiles.values, lane, dv);
      load_values(tiles, q, column);
      add_products<Side::columns>(tiles.dscores, tiles.values, lane, dk);
    }
  }
  const std::int64_t token = p.key_token(b, j0);
  write_tile(a.dk.at(token, kv, p.size), a.dk.row, count, column, p.size, dk,
             static_cast<T>(p.scale), lane);
  write_tile(a.dv.at(token, kv, p.value_size), a.dv.row, count, column, p.value_size, dv, T(1),
             lane);
}

// blockIdx: queries by tiles and columns by 64, heads, batches.
template <class S>
__global__ void __launch_bounds__(threads)
    queries_kernel(const __grid_constant__ CudaProblem p, BackwardArgs<S> a) {
  using T = Compute<S>;
  extern __shared__ unsigned char memory[];
  Tiles<T>& tiles = *reinterpret_cast<Tiles<T>*>(memory);
  const Lane lane;
  const int chunks = (p.size + tile - 1) / tile;
  const int i0 = static_cast<int>(blockIdx.x) / chunks * tile;
  const int column = static_cast<int>(blockIdx.x) % chunks * tile;
  const int h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int kv = h / p.group(), rows = p.queries - i0 < tile ? p.queries - i0 : tile;
  const Rows<S> q{a.q + p.q.at(b, h) + i0 * p.q.row, p.q.row, rows, p.size};
  const Rows<S> g{a.grad + p.grad.at(b, h) + i0 * p.grad.row, p.grad.row, rows, p.value_size};
  const ScoreRules<S> rules(p, a.mask, a.control->random, b, h);
  const std::int64_t row0 = (static_cast<std::int64_t>(b) * p.heads + h) * p.queries;
  T dq[per][per] = {};
  const int begin = FirstKeys<false>(p, a.bounds, b).first_key(p, i0, i0 + rows, tile);
  const int visible = p.visible_keys(i0 + rows);
  for (int j0 = begin; j0 < visible; j0 += tile) {
    const int count = visible - j0 < tile ? visible - j0 : tile;
    const Rows<S> k{a.k + p.k.at(b, kv) + j0 * p.k.row, p.k.row, count, p.size};
    const Rows<S> v{a.v + p.v.at(b, kv) + j0 * p.v.row, p.v.row, count, p.value_size};
    T scores[per][per], grads[per][per];
    draw(tiles, rules, i0, j0);
    row_products(tiles, q, k, lane, scores);
    row_products(tiles, g, v, lane, grads);
    softmax_gradient(p, a, rules, tiles, row0, i0, j0, scores, grads, lane);
    load_values(tiles, k, column);
    add_products<Side::rows>(tiles.dscores, tiles.values, lane, dq);
  }
  write_tile(a.dq.at(p.query_token(b, i0), h, p.size), a.dq.row, rows, column, p.size, dq,
             static_cast<T>(p.scale), lane);
}

dim3 grid(int rows, int columns, int heads, int batches) {
  const std::int64_t chunks = std::max<std::int64_t>(1, ceil_div(columns, tile));
  return dim3(static_cast<unsigned>(ceil_div(rows, tile) * chunks), static_cast<unsigned>(heads),
              static_cast<unsigned>(batches));
}

}  // namespace

template <class S>
void forward_simt(const KernelArgs& args, const CudaProblem& p, const ForwardArgs<S>& a) {
  run_first_key_bounds(args, "attention", p, a);
  launch({args, "attention", grid(p.queries, p.value_size, p.heads, p.batches), dim3(threads),
          sizeof(Tiles<Compute<S>>)},
         forward_kernel<S>, p, a);
}

template <class S>
void backward_simt(const KernelArgs& args, const CudaProblem& p, const BackwardArgs<S>& a) {
  const std::size_t shared = sizeof(Tiles<Compute<S>>);
  run_delta(args, p, a);
  run_first_key_bounds(args, "attention_grad", p, a);
  launch(
      {args, "attention_grad", grid(p.keys, std::max(p.size, p.value_size), p.kv_heads, p.batches),
       dim3(threads), shared},
      keys_kernel<S>, p, a);
  launch(
      {args, "attention_grad", grid(p.queries, p.size, p.heads, p.batches), dim3(threads), shared},
      queries_kernel<S>, p, a);
}

}  // namespace ebb::attention
