// Backward on tensor cores, for half types and float32 and heads of up to 256, in two kernels, so
// that one block accumulates each sum in a fixed order: one walks over the queries for a tile of
// keys (dk, dv), the other over the keys for a tile of queries (dq). Each recomputes the weights
// from the saved logsumexp.
//
// With w the weights after dropout, f its factors and δ = o · do of a query:
//   dv = wᵀ · do    ds = weights · (f · (do · vᵀ) - δ)    dk = scale · dsᵀ · q    dq = scale · ds ·
//   k
//
// A warp has 16 rows of results. Where these do not fit its registers, two warps have the same rows
// and half of the columns each. They also compute scores from half of the columns each, and add
// them through shared memory.
//
// Each dtype and size is instantiated in a source of its own, so that the compiler can work on them
// in parallel.
#pragma once

#include "ops/attention/delta.cuh"
#include "ops/attention/first_keys.cuh"
#include "ops/attention/products.cuh"
#include "ops/attention/weights.cuh"

namespace ebb::attention {
namespace {

using namespace cuda;

// The weights and the gradients of scores that become factors of the second products.
template <class S, bool plain, int count, class Saved, class Delta>
__device__ void differentiate(const ScoreRules<S, plain>& rules, const Kept<plain, count>& kept,
                              const Saved& saved, const Delta& delta, float (&scores)[count][4],
                              float (&grads)[count][4]) {
#pragma unroll
  for (int n = 0; n < count; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float weight = power_of_two(scores[n][e] - saved(n, e));
      const float factor = kept(n, e, rules.keep);
      grads[n][e] = weight * (grads[n][e] * factor - delta(n, e));
      scores[n][e] = weight * factor;
    }
}

// Warps that have the same columns, with 16 rows each; warps that have the same rows, one or two;
// rows that are walked over in a step; blocks of a multiprocessor.
struct BackwardForm {
  int warps, parts, step, blocks;

  constexpr int height() const { return 16 * warps; }
  constexpr int threads() const { return 32 * warps * parts; }
};

// Scores and gradients of weights of one warp, for the other that has the same rows.
template <BackwardForm form>
struct Halves {
  static_assert(form.parts == 2);
  float4 of[2 * form.warps][2][form.step / 8][32];  // warp, scores or gradients, block, lane

  // By all warps, with a barrier between the last use and this one.
  template <int count>
  __device__ void join(float (&scores)[count][4], float (&grads)[count][4]) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int other = warp < form.warps ? warp + form.warps : warp - form.warps;
    const auto each = [&](const auto& use) {
#pragma unroll
      for (int n = 0; n < count; ++n) use(0, n, scores[n]), use(1, n, grads[n]);
    };
    each([&](int kind, int n, const float(&c)[4]) {
      of[warp][kind][n][lane] = make_float4(c[0], c[1], c[2], c[3]);
    });
    __syncthreads();
    each([&](int kind, int n, float(&c)[4]) {
      const float4 more = of[other][kind][n][lane];
      c[0] += more.x, c[1] += more.y, c[2] += more.z, c[3] += more.w;
    });
  }
};
template <BackwardForm form>
requires(form.parts == 1) struct Halves<form> {
  template <class C>
  __device__ void join(C&, C&) {}
};

// --- dk and dv: rows of results are keys, columns queries.

template <class S>
constexpr BackwardForm keys_form(int padded) {
  if (sizeof(S) == 2)
    return padded == 64    ? BackwardForm{4, 1, 64, 2}
           : padded == 128 ? BackwardForm{4, 1, 32, 2}
                           : BackwardForm{4, 2, 32, 1};
  if (padded == 128) return {8, 1, 32, 1};
  if (padded == 256) return {4, 2, 16, 1};
  return {4, 1, 32, padded == 96 ? 2 : 3};
}

template <class Products, int padded>
struct KeyTiles {
  static constexpr BackwardForm form = keys_form<typename Products::Element>(padded);
  typename Products::template Tile<form.height(), padded> k, v;
  typename Products::template Tile<form.step, padded> q[2], grad[2];
  float saved[2][form.step], delta[2][form.step];
  Halves<form> halves;
};

template <class Products, int padded, bool plain>
__global__ void __launch_bounds__(KeyTiles<Products, padded>::form.threads(),
                                  KeyTiles<Products, padded>::form.blocks)
    keys_kernel(const __grid_constant__ CudaProblem p, BackwardArgs<typename Products::Element> a,
                bool whole) {
  using S = typename Products::Element;
  using Tiles = KeyTiles<Products, padded>;
  constexpr BackwardForm form = Tiles::form;
  constexpr int threads = form.threads(), height = form.height(), step = form.step;
  constexpr int columns = padded / form.parts;  // of results, of a warp
  extern __shared__ uint4 memory[];
  Tiles& tiles = *reinterpret_cast<Tiles*>(memory);
  const int j0 = static_cast<int>(blockIdx.x) * height, count = min(p.keys - j0, height);
  const int kv = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row0 = warp % form.warps * 16, column0 = warp / form.warps * columns;
  const int g = lane / 4, t = lane % 4, key0 = j0 + row0;
  const FirstKeys<plain> first_keys(p, a.bounds, b);
  const int begin = p.first_query(j0) / step * step, end = first_keys.end_query(p, j0 + count - 1);
  const int steps = begin < end ? (end - begin + step - 1) / step : 0;
  const int all = steps * p.group();  // tiles of queries of every head that reads these keys

  const auto load = [&](int n) {
    if (n < all) {
      const int h = kv * p.group() + n / steps, i = begin + n % steps * step;
      const int rows = min(p.queries - i, step), side = n % 2;
      tiles.q[side].template load<threads>(a.q + p.q.at(b, h) + i * p.q.row, p.q.row, rows, p.size,
                                           whole);
      tiles.grad[side].template load<threads>(a.grad + p.grad.at(b, h) + i * p.grad.row, p.grad.row,
                                              rows, p.value_size, whole);
      const std::int64_t row = (static_cast<std::int64_t>(b) * p.heads + h) * p.queries + i;
      for (int r = static_cast<int>(threadIdx.x); r < step; r += threads) {
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

  float dk[columns / 8][4] = {}, dv[columns / 8][4] = {};
  for (int n = 0; n < all; ++n) {
    load(n + 1);
    wait_groups<1>();
    __syncthreads();
    const int h = kv * p.group() + n / steps, i0 = begin + n % steps * step, side = n % 2;
    const ScoreRules<S, plain> rules(p, a.mask, a.control->random, b, h);
    float scores[step / 8][4] = {}, grads[step / 8][4] = {};
    Products::template add_row_products<columns>(scores, tiles.k, row0, tiles.q[side], column0);
    Products::template add_row_products<columns>(grads, tiles.v, row0, tiles.grad[side], column0);
    tiles.halves.join(scores, grads);
    scale_scores(
        rules,
        j0 + height <= p.keys && i0 + step <= p.queries && (!p.causal || key0 + 15 <= i0) &&
            first_keys.sees(i0, key0),
        ShownKeys<plain>::of_rows(rules, key0), scores,
        [&](int c, int e) { return i0 + 8 * c + 2 * t + e % 2; },
        [&](int, int e) { return key0 + g + e / 2 * 8; },
        [](const auto& shown, int, int e) { return shown.row(e / 2); });
    differentiate(
        rules, Kept<plain, step / 8>::of_columns(rules, i0, key0),
        [&](int c, int e) { return tiles.saved[side][8 * c + 2 * t + e % 2]; },
        [&](int c, int e) { return tiles.delta[side][8 * c + 2 * t + e % 2]; }, scores, grads);
    Products::add_products(dv, scores, tiles.grad[side], column0);
    Products::add_products(dk, grads, tiles.q[side], column0);
    __syncthreads();  // before the side is loaded again
  }
  wait_groups<0>();
  const std::int64_t token = p.key_token(b, key0);
  const float scale = static_cast<float>(p.scale);
  write_rows(a.dk.at(token, kv, p.size) + column0, a.dk.row, p.keys - key0, p.size - column0, dk,
             {scale, scale});
  write_rows(a.dv.at(token, kv, p.value_size) + column0, a.dv.row, p.keys - key0,
             p.value_size - column0, dv, {1.0f, 1.0f});
}

// --- dq

template <class S>
constexpr BackwardForm queries_form(int padded) {
  if (sizeof(S) == 2) return padded == 256 ? BackwardForm{4, 2, 32, 1} : BackwardForm{4, 1, 64, 2};
  if (padded == 128) return {8, 1, 32, 1};
  if (padded == 256) return {4, 2, 16, 1};
  return {4, 1, 32, padded == 96 ? 2 : 3};
}

template <class Products, int padded>
struct QueryTiles {
  static constexpr BackwardForm form = queries_form<typename Products::Element>(padded);
  typename Products::template Tile<form.height(), padded> q, grad;
  typename Products::template Tile<form.step, padded> k[2], v[2];
  Halves<form> halves;
};

template <class Products, int padded, bool plain>
__global__ void __launch_bounds__(QueryTiles<Products, padded>::form.threads(),
                                  QueryTiles<Products, padded>::form.blocks)
    queries_kernel(const __grid_constant__ CudaProblem p,
                   BackwardArgs<typename Products::Element> a, bool whole) {
  using S = typename Products::Element;
  using Tiles = QueryTiles<Products, padded>;
  constexpr BackwardForm form = Tiles::form;
  constexpr int threads = form.threads(), height = form.height(), step = form.step;
  constexpr int columns = padded / form.parts;
  extern __shared__ uint4 memory[];
  Tiles& tiles = *reinterpret_cast<Tiles*>(memory);
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * height;
  const int h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int kv = h / p.group(), rows = min(p.queries - first, height);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int column0 = warp / form.warps * columns;
  const int g = lane / 4, t = lane % 4, row0 = first + warp % form.warps * 16;
  const FirstKeys<plain> first_keys(p, a.bounds, b);
  const int begin = first_keys.first_key(p, first, first + rows, step);
  const int visible = p.visible_keys(first + rows);
  const ScoreRules<S, plain> rules(p, a.mask, a.control->random, b, h);
  const auto load = [&](int j) {
    if (j < visible) {
      const int side = j / step % 2;
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
  load(begin);

  const std::int64_t head = (static_cast<std::int64_t>(b) * p.heads + h) * p.queries;
  float saved[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = row0 + g + 8 * half;
    saved[half] = i < p.queries ? saved_base(a.logsumexp[head + i]) : infinity<float>();
    delta[half] = i < p.queries ? a.delta[head + i] : 0.0f;
  }
  float dq[columns / 8][4] = {};
  for (int j = begin; j < visible; j += step) {
    load(j + step);
    wait_groups<1>();
    __syncthreads();
    const int side = j / step % 2;
    float scores[step / 8][4] = {}, grads[step / 8][4] = {};
    const int row = row0 - first;
    Products::template add_row_products<columns>(scores, tiles.q, row, tiles.k[side], column0);
    Products::template add_row_products<columns>(grads, tiles.grad, row, tiles.v[side], column0);
    tiles.halves.join(scores, grads);
    scale_scores(
        rules,
        j + step <= visible && (!p.causal || j + step - 1 <= row0) &&
            first_keys.sees(min(row0, p.queries - 1), j),
        ShownKeys<plain>::of_columns(rules, j), scores,
        [&](int, int e) { return row0 + g + e / 2 * 8; },
        [&](int n, int e) { return j + 8 * n + 2 * t + e % 2; },
        [](const auto& shown, int n, int e) { return shown.column(n, e % 2); });
    differentiate(
        rules, Kept<plain, step / 8>::of_rows(rules, row0, j),
        [&](int, int e) { return saved[e / 2]; }, [&](int, int e) { return delta[e / 2]; }, scores,
        grads);
    Products::add_products(dq, grads, tiles.k[side], column0);
    __syncthreads();  // before the side is loaded again
  }
  wait_groups<0>();
  const float scale = static_cast<float>(p.scale);
  write_rows(a.dq.at(p.query_token(b, row0), h, p.size) + column0, a.dq.row, p.queries - row0,
             p.size - column0, dq, {scale, scale});
}

}  // namespace

template <class S, int padded>
void backward_mma(const KernelArgs& args, const CudaProblem& p, const BackwardArgs<S>& a) {
  run_delta(args, p, a);
  run_first_key_bounds(args, "attention_grad", p, a);
  const bool whole = whole_pieces(a.q, p.q, p.size) && whole_pieces(a.k, p.k, p.size) &&
                     whole_pieces(a.v, p.v, p.value_size) &&
                     whole_pieces(a.grad, p.grad, p.value_size);
  const auto start = [&]<class Tiles>(int rows, int heads, auto kernel) {
    launch({args, "attention_grad",
            dim3(static_cast<unsigned>(ceil_div(rows, Tiles::form.height())),
                 static_cast<unsigned>(heads), static_cast<unsigned>(p.batches)),
            dim3(Tiles::form.threads()), sizeof(Tiles)},
           kernel, p, a, whole);
  };
  with_products<S>(p, [&](auto products) {
    using Products = decltype(products);
    const bool plain = p.plain();
    start.template operator()<KeyTiles<Products, padded>>(
        p.keys, p.kv_heads,
        plain ? keys_kernel<Products, padded, true> : keys_kernel<Products, padded, false>);
    start.template operator()<QueryTiles<Products, padded>>(
        p.queries, p.heads,
        plain ? queries_kernel<Products, padded, true> : queries_kernel<Products, padded, false>);
  });
}

}  // namespace ebb::attention
