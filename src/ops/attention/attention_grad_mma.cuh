// Backward on tensor cores, in two kernels, so that one block accumulates each sum in a fixed
// order: one walks over the queries for a tile of keys (dk, dv), the other over the keys for a tile
// of queries (dq). Each recomputes the weights from the saved logsumexp.
//
// With w the weights after dropout, f its factors and δ = o · do of a query:
//   dv = wᵀ · do    ds = weights · (f · (do · vᵀ) - δ)    dk = scale · dsᵀ · q    dq = scale · ds ·
//   k
//
// Each dtype is instantiated in a source of its own, so that the compiler can work on them in
// parallel.
#pragma once

#include "ops/attention/mma.cuh"
#include "ops/attention/weights.cuh"

namespace ebb::attention {
namespace {

using namespace cuda;

constexpr int threads = 128, tile = 64;

// Σ o · do of each query, a warp each.
template <class S>
__global__ void delta_kernel(const __grid_constant__ CudaProblem p, BackwardArgs<S> a) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  const std::int64_t all = static_cast<std::int64_t>(p.batches) * p.heads * p.queries;
  if (row >= all) return;
  const std::int64_t head = row / p.queries, i = row - head * p.queries;
  const int b = static_cast<int>(head / p.heads), h = static_cast<int>(head % p.heads);
  const S *o = a.o + p.o.at(b, h) + i * p.o.row, *grad = a.grad + p.grad.at(b, h) + i * p.grad.row;
  float sum = 0.0f;
  for (int d = static_cast<int>(threadIdx.x) % 32; d < p.value_size; d += 32)
    sum += widen(o[d]) * widen(grad[d]);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  if (threadIdx.x % 32 == 0) a.delta[row] = sum;
}

// One score and the gradient of its weight become the weight after dropout and the gradient of the
// score. `saved` is the logsumexp times log2(e), or +inf for a query without keys.
template <class S, bool plain>
__device__ void differentiate(const CudaProblem& p, const ScoreRules<S, plain>& rules, bool every,
                              float saved, float delta, int i, int j, float factor, float& score,
                              float& grad) {
  float s = score * (static_cast<float>(p.scale) * log2_e);
  if (!every) s = rules.masked(s * ln_2, i, j) * log2_e;
  const float weight = power_of_two(s - saved);
  grad = weight * (grad * factor - delta);
  score = weight * factor;
}

// --- dk and dv: rows of results are keys, columns queries.

template <class S, int padded, int height>
struct KeyTiles {
  SharedTile<S, tile, padded> k, v;
  SharedTile<S, height, padded> q[2], grad[2];
  float saved[2][height], delta[2][height];
};

template <class S, int padded, int height, bool plain>
__global__ void __launch_bounds__(threads)
    keys_kernel(const __grid_constant__ CudaProblem p, BackwardArgs<S> a, bool whole) {
  extern __shared__ uint4 memory[];
  using Tiles = KeyTiles<S, padded, height>;
  Tiles& tiles = *reinterpret_cast<Tiles*>(memory);
  const int j0 = static_cast<int>(blockIdx.x) * tile, count = min(p.keys - j0, tile);
  const int kv = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4, key0 = j0 + warp * 16;
  const int begin = p.first_query(j0) / height * height;
  const int steps = begin < p.queries ? (p.queries - begin + height - 1) / height : 0;
  const int all = steps * p.group();  // tiles of queries of every head that reads these keys

  const auto load = [&](int n) {
    if (n < all) {
      const int h = kv * p.group() + n / steps, i = begin + n % steps * height;
      const int rows = min(p.queries - i, height), side = n % 2;
      tiles.q[side].template load<threads>(a.q + p.q.at(b, h) + i * p.q.row, p.q.row, rows, p.size,
                                           whole);
      tiles.grad[side].template load<threads>(a.grad + p.grad.at(b, h) + i * p.grad.row, p.grad.row,
                                              rows, p.value_size, whole);
      const std::int64_t row = (static_cast<std::int64_t>(b) * p.heads + h) * p.queries + i;
      for (int r = static_cast<int>(threadIdx.x); r < height; r += threads) {
        tiles.saved[side][r] = r < rows ? saved_base(a.logsumexp[row + r]) : infinity<float>();
        tiles.delta[side][r] = r < rows ? a.delta[row + r] : 0.0f;
      }
    }
    end_group();
  };
  tiles.k.template load<threads>(a.k + p.k.at(b, kv) + j0 * p.k.row, p.k.row, count, p.size, whole);
  tiles.v.template load<threads>(a.v + p.v.at(b, kv) + j0 * p.v.row, p.v.row, count, p.value_size,
                                 whole);
  load(0);

  float dk[padded / 8][4] = {}, dv[padded / 8][4] = {};
  for (int n = 0; n < all; ++n) {
    load(n + 1);
    wait_groups<1>();
    __syncthreads();
    const int h = kv * p.group() + n / steps, i0 = begin + n % steps * height, side = n % 2;
    const ScoreRules<S, plain> rules(p, a.mask, a.control->random, b, h);
    float scores[height / 8][4] = {}, grads[height / 8][4] = {};
    add_row_products<S>(scores, tiles.k, warp * 16, tiles.q[side]);
    add_row_products<S>(grads, tiles.v, warp * 16, tiles.grad[side]);
    const bool every = !rules.masks() && j0 + tile <= p.keys && i0 + height <= p.queries &&
                       (!p.causal || key0 + 15 <= i0);
    const auto kept = Kept<plain, height / 8>::of_columns(rules, i0, key0);
#pragma unroll
    for (int c = 0; c < height / 8; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = 8 * c + 2 * t + e % 2;
        differentiate(p, rules, every, tiles.saved[side][column], tiles.delta[side][column],
                      i0 + column, key0 + g + e / 2 * 8, kept(c, e, rules.keep), scores[c][e],
                      grads[c][e]);
      }
    add_products<S>(dv, scores, tiles.grad[side]);
    add_products<S>(dk, grads, tiles.q[side]);
    __syncthreads();  // before the side is loaded again
  }
  wait_groups<0>();
  const std::int64_t token = p.key_token(b, key0);
  const float scale = static_cast<float>(p.scale);
  write_rows(a.dk.at(token, kv, p.size), a.dk.row, p.keys - key0, p.size, dk, {scale, scale});
  write_rows(a.dv.at(token, kv, p.value_size), a.dv.row, p.keys - key0, p.value_size, dv,
             {1.0f, 1.0f});
}

// --- dq

template <class S, int padded>
struct QueryTiles {
  SharedTile<S, tile, padded> q, grad, k[2], v[2];
};

template <class S, int padded, bool plain>
__global__ void __launch_bounds__(threads)
    queries_kernel(const __grid_constant__ CudaProblem p, BackwardArgs<S> a, bool whole) {
  extern __shared__ uint4 memory[];
  QueryTiles<S, padded>& tiles = *reinterpret_cast<QueryTiles<S, padded>*>(memory);
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * tile;
  const int h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int kv = h / p.group(), rows = min(p.queries - first, tile);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4, row0 = first + warp * 16;
  const int visible = p.visible_keys(first + rows);
  const ScoreRules<S, plain> rules(p, a.mask, a.control->random, b, h);
  const auto load = [&](int j) {
    if (j < visible) {
      const int side = j / tile % 2;
      tiles.k[side].template load<threads>(a.k + p.k.at(b, kv) + j * p.k.row, p.k.row, visible - j,
                                           p.size, whole);
      tiles.v[side].template load<threads>(a.v + p.v.at(b, kv) + j * p.v.row, p.v.row, visible - j,
                                           p.value_size, whole);
    }
    end_group();
  };
  tiles.q.template load<threads>(a.q + p.q.at(b, h) + first * p.q.row, p.q.row, rows, p.size,
                                 whole);
  tiles.grad.template load<threads>(a.grad + p.grad.at(b, h) + first * p.grad.row, p.grad.row, rows,
                                    p.value_size, whole);
  load(0);

  const std::int64_t head = (static_cast<std::int64_t>(b) * p.heads + h) * p.queries;
  float saved[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = row0 + g + 8 * half;
    saved[half] = i < p.queries ? saved_base(a.logsumexp[head + i]) : infinity<float>();
    delta[half] = i < p.queries ? a.delta[head + i] : 0.0f;
  }
  float dq[padded / 8][4] = {};
  for (int j = 0; j < visible; j += tile) {
    load(j + tile);
    wait_groups<1>();
    __syncthreads();
    const int side = j / tile % 2;
    float scores[tile / 8][4] = {}, grads[tile / 8][4] = {};
    add_row_products<S>(scores, tiles.q, warp * 16, tiles.k[side]);
    add_row_products<S>(grads, tiles.grad, warp * 16, tiles.v[side]);
    const bool every = !rules.masks() && j + tile <= visible && (!p.causal || j + tile - 1 <= row0);
    const auto kept = Kept<plain, tile / 8>::of_rows(rules, row0, j);
#pragma unroll
    for (int c = 0; c < tile / 8; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        differentiate(p, rules, every, saved[e / 2], delta[e / 2], row0 + g + e / 2 * 8,
                      j + 8 * c + 2 * t + e % 2, kept(c, e, rules.keep), scores[c][e], grads[c][e]);
    add_products<S>(dq, grads, tiles.k[side]);
    __syncthreads();  // before the side is loaded again
  }
  wait_groups<0>();
  const float scale = static_cast<float>(p.scale);
  write_rows(a.dq.at(p.query_token(b, row0), h, p.size), a.dq.row, p.queries - row0, p.size, dq,
             {scale, scale});
}

template <class S, int padded>
void run(const KernelArgs& args, const CudaProblem& p, const BackwardArgs<S>& a, bool whole) {
  constexpr int height = padded == 64 ? 64 : 32;  // queries at a time, limited by registers
  const unsigned batches = static_cast<unsigned>(p.batches);
  launch({args, "attention_grad",
          dim3(static_cast<unsigned>(ceil_div(p.keys, tile)), static_cast<unsigned>(p.kv_heads),
               batches),
          dim3(threads), sizeof(KeyTiles<S, padded, height>)},
         p.plain() ? keys_kernel<S, padded, height, true> : keys_kernel<S, padded, height, false>,
         p, a, whole);
  launch({args, "attention_grad",
          dim3(static_cast<unsigned>(ceil_div(p.queries, tile)), static_cast<unsigned>(p.heads),
               batches),
          dim3(threads), sizeof(QueryTiles<S, padded>)},
         p.plain() ? queries_kernel<S, padded, true> : queries_kernel<S, padded, false>, p, a,
         whole);
}

}  // namespace

template <class S>
void backward_mma(const KernelArgs& args, const CudaProblem& p, const BackwardArgs<S>& a) {
  const std::int64_t rows = static_cast<std::int64_t>(p.batches) * p.heads * p.queries;
  launch({args, "attention_grad", dim3(static_cast<unsigned>(ceil_div(rows, 8))), dim3(256)},
         delta_kernel<S>, p, a);
  const bool whole = whole_pieces(a.q, p.q, p.size) && whole_pieces(a.k, p.k, p.size) &&
                     whole_pieces(a.v, p.v, p.value_size) &&
                     whole_pieces(a.grad, p.grad, p.value_size);
  if (std::max(p.size, p.value_size) <= 64)
    run<S, 64>(args, p, a, whole);
  else
    run<S, 128>(args, p, a, whole);
}

}  // namespace ebb::attention
