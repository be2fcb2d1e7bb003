// Forward on tensor cores, for half types and heads of up to 128: a block of four warps takes 64
// queries of a head, a warp 16 of them, and walks over the keys 64 at a time with a running maximum
// and sum for each query (Dao, 2023). Loads overlap with arithmetic: the next keys are fetched when
// the scores are done, the next values when the result has been accumulated.
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

template <class S, int padded>
struct Tiles {
  SharedTile<S, tile, padded> q, k, v;
};

template <class S, int padded, bool plain>
__global__ void __launch_bounds__(threads)
    forward_kernel(const __grid_constant__ CudaProblem p, ForwardArgs<S> a, bool whole) {
  extern __shared__ uint4 memory[];
  Tiles<S, padded>& tiles = *reinterpret_cast<Tiles<S, padded>*>(memory);
  // With a causal mask the last queries take longest, so they start first.
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * tile;
  const int h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int kv = h / p.group(), rows = min(p.queries - first, tile);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4, row0 = first + warp * 16;  // of the warp
  const int visible = p.visible_keys(first + rows);
  const ScoreRules<S, plain> rules(p, a.mask, a.control->random, b, h);
  const S *k = a.k + p.k.at(b, kv), *v = a.v + p.v.at(b, kv);
  const auto load_keys = [&](int j) {
    if (j < visible)
      tiles.k.template load<threads>(k + j * p.k.row, p.k.row, visible - j, p.size, whole);
    end_group();  // an empty group keeps the count
  };
  const auto load_values = [&](int j) {
    if (j < visible)
      tiles.v.template load<threads>(v + j * p.v.row, p.v.row, visible - j, p.value_size, whole);
    end_group();
  };
  tiles.q.template load<threads>(a.q + p.q.at(b, h) + first * p.q.row, p.q.row, rows, p.size,
                                 whole);
  load_keys(0);
  load_values(0);

  float out[padded / 8][4] = {}, most[2] = {-infinity<float>(), -infinity<float>()}, total[2] = {};
  std::uint32_t queries[padded / 16][4];
  const float scale = static_cast<float>(p.scale) * log2_e;
  for (int j = 0; j < visible; j += tile) {
    wait_groups<1>();
    __syncthreads();
    if (j == 0)
#pragma unroll
      for (int d = 0; d < padded / 16; ++d) tiles.q.factor(queries[d], warp * 16, d);
    float scores[tile / 8][4] = {};
#pragma unroll
    for (int d = 0; d < padded / 16; ++d)
#pragma unroll
      for (int n = 0; n < tile / 16; ++n) {
        std::uint32_t y[4];
        tiles.k.transposed_factor(y, 16 * n, d);
        multiply_add<S>(scores[2 * n], queries[d], y[0], y[1]);
        multiply_add<S>(scores[2 * n + 1], queries[d], y[2], y[3]);
      }
    __syncthreads();  // all warps have read the keys
    load_keys(j + tile);

    const bool every = !rules.masks() && j + tile <= visible && (!p.causal || j + tile - 1 <= row0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = row0 + g + 8 * half;
      float top = most[half];
#pragma unroll
      for (int n = 0; n < tile / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& s = scores[n][2 * half + e];
          s *= scale;
          if (!every) {
            const int key = j + 8 * n + 2 * t + e;
            s = key < visible ? rules.masked(s * ln_2, i, key) * log2_e : -infinity<float>();
          }
          top = s > top ? s : top;
        }
      top = join_row(top, [](float x, float y) { return y > x ? y : x; });
      const float base = top == -infinity<float>() ? 0.0f : top;  // no key yet: any finite base
      const float shrink = power_of_two(most[half] - base);
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < tile / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& s = scores[n][2 * half + e];
          s = power_of_two(s - base);
          sum += s;
        }
      total[half] = total[half] * shrink + join_row(sum, [](float x, float y) { return x + y; });
      most[half] = top;
#pragma unroll
      for (int n = 0; n < padded / 8; ++n)
        out[n][2 * half] *= shrink, out[n][2 * half + 1] *= shrink;
    }
    if (rules.drops()) {
      const auto kept = Kept<plain, tile / 8>::of_rows(rules, row0, j);
#pragma unroll
      for (int n = 0; n < tile / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) scores[n][e] = kept(n, e, scores[n][e]);
    }
    wait_groups<1>();
    __syncthreads();
    add_products<S>(out, scores, tiles.v);
    __syncthreads();
    load_values(j + tile);
  }
  wait_groups<0>();

  const std::int64_t row = (static_cast<std::int64_t>(b) * p.heads + h) * p.queries + row0;
  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    inverse[half] = total[half] == 0.0f ? 0.0f : rules.keep / total[half];
    if (t == 0 && row0 + g + 8 * half < p.queries)
      a.logsumexp[row + g + 8 * half] =
          total[half] == 0.0f ? -infinity<float>() : most[half] * ln_2 + logf(total[half]);
  }
  write_rows(a.o.at(p.query_token(b, row0), h, p.value_size), a.o.row, p.queries - row0,
             p.value_size, out, inverse);
}

}  // namespace

template <class S>
void forward_mma(const KernelArgs& args, const CudaProblem& p, const ForwardArgs<S>& a) {
  const bool whole = whole_pieces(a.q, p.q, p.size) && whole_pieces(a.k, p.k, p.size) &&
                     whole_pieces(a.v, p.v, p.value_size);
  const dim3 grid(static_cast<unsigned>(ceil_div(p.queries, tile)), static_cast<unsigned>(p.heads),
                  static_cast<unsigned>(p.batches));
  if (std::max(p.size, p.value_size) <= 64)
    launch({args, "attention", grid, dim3(threads), sizeof(Tiles<S, 64>)},
           p.plain() ? forward_kernel<S, 64, true> : forward_kernel<S, 64, false>, p, a, whole);
  else
    launch({args, "attention", grid, dim3(threads), sizeof(Tiles<S, 128>)},
           p.plain() ? forward_kernel<S, 128, true> : forward_kernel<S, 128, false>, p, a, whole);
}

}  // namespace ebb::attention
