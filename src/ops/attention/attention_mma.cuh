// Forward on tensor cores, for half types and float32 and heads of up to 256: a warp takes 16
// queries of a head and walks over the keys a tile at a time, with a running maximum and sum for
// each query (Dao, 2023). Loads overlap with arithmetic: the next keys are fetched when the scores
// are done, the next values when the result has been accumulated.
//
// Each dtype and size is instantiated in a source of its own, so that the compiler can work on them
// in parallel.
#pragma once

#include "ops/attention/first_keys.cuh"
#include "ops/attention/products.cuh"
#include "ops/attention/weights.cuh"

namespace ebb::attention {
namespace {

using namespace cuda;

// Warps of a block, with 16 queries each; keys of a step; blocks of a multiprocessor, which
// together limit registers and shared memory. Those for float32 are the fastest of several on an
// H200.
struct ForwardForm {
  int warps, width, blocks;
};

template <class S>
constexpr ForwardForm forward_form(int padded) {
  if (padded == 256) return {8, 32, 1};
  if (sizeof(S) == 2) return {4, 64, padded == 64 ? 4 : 2};
  return padded <= 64 ? ForwardForm{4, 64, 3} : ForwardForm{4, 32, 3};
}

template <class Products, int padded>
struct ForwardTiles {
  static constexpr ForwardForm form = forward_form<typename Products::Element>(padded);
  static constexpr int threads = 32 * form.warps, height = 16 * form.warps;
  typename Products::template Tile<height, padded> q;
  typename Products::template Tile<form.width, padded> k, v;
};

// Turns 16 rows of scores into weights, with the running maximum and sum of each row, and shrinks
// what has been accumulated to the new maximum.
template <int count, int columns>
__device__ void weigh(float (&scores)[count][4], float (&out)[columns][4], float (&most)[2],
                      float (&total)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = most[half];
#pragma unroll
    for (int n = 0; n < count; ++n)
      top = fmaxf(top, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
    top = join_row(top, [](float x, float y) { return fmaxf(x, y); });
    const float base = top == -infinity<float>() ? 0.0f : top;  // no key yet: any finite base
    const float shrink = power_of_two(most[half] - base);
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < count; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& s = scores[n][2 * half + e];
        s = power_of_two(s - base);
        sum += s;
      }
    total[half] = total[half] * shrink + join_row(sum, [](float x, float y) { return x + y; });
    most[half] = top;
#pragma unroll
    for (int n = 0; n < columns; ++n) out[n][2 * half] *= shrink, out[n][2 * half + 1] *= shrink;
  }
}

template <class Products, int padded, bool plain>
__global__ void __launch_bounds__(ForwardTiles<Products, padded>::threads,
                                  ForwardTiles<Products, padded>::form.blocks)
    forward_kernel(const __grid_constant__ CudaProblem p, ForwardArgs<typename Products::Element> a,
                   bool whole) {
  using S = typename Products::Element;
  using Tiles = ForwardTiles<Products, padded>;
  constexpr int threads = Tiles::threads, height = Tiles::height, width = Tiles::form.width;
  extern __shared__ uint4 memory[];
  Tiles& tiles = *reinterpret_cast<Tiles*>(memory);
  // With a causal mask the last queries take longest, so they start first.
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * height;
  const int h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int kv = h / p.group(), rows = min(p.queries - first, height);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4, row0 = first + warp * 16;  // of the warp
  const FirstKeys<plain> first_keys(p, a.bounds, b);
  const int begin = first_keys.first_key(p, first, first + rows, width);
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
  load_keys(begin);
  load_values(begin);

  float out[padded / 8][4] = {}, most[2] = {-infinity<float>(), -infinity<float>()}, total[2] = {};
  for (int j = begin; j < visible; j += width) {
    wait_groups<1>();
    __syncthreads();
    float scores[width / 8][4] = {};
    Products::template add_row_products<padded>(scores, tiles.q, row0 - first, tiles.k, 0);
    __syncthreads();  // all warps have read the keys
    load_keys(j + width);

    scale_scores(
        rules,
        j + width <= visible && (!p.causal || j + width - 1 <= row0) &&
            first_keys.sees(min(row0, p.queries - 1), j),
        ShownKeys<plain>::of_columns(rules, j), scores,
        [&](int, int e) { return row0 + g + e / 2 * 8; },
        [&](int n, int e) { return j + 8 * n + 2 * t + e % 2; },
        [](const auto& shown, int n, int e) { return shown.column(n, e % 2); });
    weigh(scores, out, most, total);
    if (rules.drops()) {
      const auto kept = Kept<plain, width / 8>::of_rows(rules, row0, j);
#pragma unroll
      for (int n = 0; n < width / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) scores[n][e] = kept(n, e, scores[n][e]);
    }
    wait_groups<1>();
    __syncthreads();
    Products::add_products(out, scores, tiles.v, 0);
    __syncthreads();
    load_values(j + width);
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

template <class S, int padded>
void forward_mma(const KernelArgs& args, const CudaProblem& p, const ForwardArgs<S>& a) {
  const bool whole = whole_pieces(a.q, p.q, p.size) && whole_pieces(a.k, p.k, p.size) &&
                     whole_pieces(a.v, p.v, p.value_size);
  run_first_key_bounds(args, "attention", p, a);
  with_products<S>(p, [&](auto products) {
    using Products = decltype(products);
    using Tiles = ForwardTiles<Products, padded>;
    const dim3 grid(static_cast<unsigned>(ceil_div(p.queries, Tiles::height)),
                    static_cast<unsigned>(p.heads), static_cast<unsigned>(p.batches));
    launch({args, "attention", grid, dim3(Tiles::threads), sizeof(Tiles)},
           p.plain() ? forward_kernel<Products, padded, true>
                     : forward_kernel<Products, padded, false>,
           p, a, whole);
  });
}

}  // namespace ebb::attention
