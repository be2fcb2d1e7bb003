// Backward on the tensor cores of compute capability 9.0, for half types and heads of up to 64: the
// two kernels of attention_grad_mma.cuh, with products that overlap with the arithmetic of the
// previous step. Each step has three parts: weights from scores, gradients of scores from gradients
// of weights, and issuing the next step's products. Products of the last step and of this one run
// during the first two parts.
#include "ops/attention/wgmma_blocks.cuh"

namespace ebb::attention {
namespace {

constexpr int stages = 4;

// For tiles of 64 queries: the logsumexp times log2(e), +inf for queries that see no key or do not
// exist, and o · do times dropout's keep probability. The tiles of a head are consecutive.
//
// Dropout's scale factor is applied only to the results: with m the mask, ds = keep · weights · (m
// · (do · vᵀ) - share · δ).
struct Statistics {
  float saved[64], delta[64];
};

// Eight lanes for each query.
template <class S>
__global__ void __launch_bounds__(256)
    statistics_kernel(const __grid_constant__ CudaProblem p, BackwardArgs<S> a) {
  const int tiles = (p.queries + 63) / 64;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x / 8;
  const std::int64_t head = row / (tiles * 64);
  const int i = static_cast<int>(row - head * tiles * 64),
            piece = static_cast<int>(threadIdx.x) % 8;
  const int b = static_cast<int>(head / p.heads), h = static_cast<int>(head % p.heads);
  float sum = 0.0f;
  if (i < p.queries && piece * 8 < p.value_size) {
    float o[8], grad[8];
    load_pack(a.o + p.o.at(b, h) + i * p.o.row + piece * 8, o);
    load_pack(a.grad + p.grad.at(b, h) + i * p.grad.row + piece * 8, grad);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum += o[e] * grad[e];
  }
#pragma unroll
  for (int distance = 4; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  if (piece != 0) return;
  Statistics& to = reinterpret_cast<Statistics*>(a.delta)[head * tiles + i / 64];
  to.saved[i % 64] =
      i < p.queries ? saved_base(a.logsumexp[head * p.queries + i]) : infinity<float>();
  to.delta[i % 64] = sum * static_cast<float>(p.dropout.share);
}

// --- dk and dv: rows of results are keys, columns queries.

template <class S, int groups>
struct KeyTiles {
  Tile<S, 64 * groups> k, v;
  Tile<S, 64> q[stages], grad[stages];
  Statistics statistics[stages];
  Barrier keys;
  Ring<stages> ring;
};

struct GradMaps {
  CUtensorMap q, k, v, grad;
};

template <class S, int groups, int blocks, bool plain>
__global__ void __launch_bounds__(128 * groups, blocks)
    keys_kernel(const __grid_constant__ CudaProblem p, const __grid_constant__ GradMaps maps,
                BackwardArgs<S> a, WorkOrder order) {
  extern __shared__ __align__(1024) uint4 memory[];
  auto& tiles = *reinterpret_cast<KeyTiles<S, groups>*>(memory);
  const auto [tile, head] = order(static_cast<int>(blockIdx.x));
  const int j0 = tile * 64 * groups, b = head / p.kv_heads, kv = head - b * p.kv_heads;
  const int warp = warp_number(), lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4, key0 = j0 + warp * 16;
  const int begin = p.first_query(j0);
  const int steps = begin < p.queries ? (p.queries - begin + 63) / 64 : 0;
  const int all = steps * p.group();  // tiles of queries of every head that reads these keys
  const int active = min(groups, (p.keys - j0 + 63) / 64);  // groups

  const auto fetch = [&](int n) {
    if (threadIdx.x != 0 || n >= all) return;
    const int h = kv * p.group() + n / steps, i = begin + n % steps * 64, s = n % stages;
    Barrier& there = tiles.ring.take(
        n, sizeof(tiles.q[s]) + sizeof(tiles.grad[s]) + sizeof(tiles.statistics[s]));
    copy_tile(&tiles.q[s], maps.q, there, i, h, b);
    copy_tile(&tiles.grad[s], maps.grad, there, i, h, b);
    const int per_head = (p.queries + 63) / 64;
    copy_bytes(&tiles.statistics[s],
               reinterpret_cast<const Statistics*>(a.delta) +
                   (static_cast<std::int64_t>(b) * p.heads + h) * per_head + i / 64,
               there, sizeof(Statistics));
  };
  if (threadIdx.x == 0) {
    tiles.keys.init(1);
    tiles.ring.init(4 * active);
    publish_barriers();
    tiles.keys.arrive_and_expect(2 * sizeof(tiles.k));
    copy_tile(&tiles.k, maps.k, tiles.keys, j0, kv, b);
    copy_tile(&tiles.v, maps.v, tiles.keys, j0, kv, b);
  }
  for (int n = 0; n < stages - 1; ++n) fetch(n);
  __syncthreads();
  if (warp >= 4 * active) return;

  float dk[8][4] = {}, dv[8][4] = {};
  if (all > 0) {
    tiles.keys.wait(0);
    const std::uint64_t k = tile_descriptor(&tiles.k) + warp / 4 * next_group,
                        v = tile_descriptor(&tiles.v) + warp / 4 * next_group;
    float scores[8][4] = {}, grads[8][4] = {};
    std::uint32_t weights[4][4], score_grads[4][4];

    const auto step = [&](int n, int h, int i0, auto follows) {
      const int side = n % stages;
      tiles.ring.wait(n);
      pin(scores), pin(grads), pin(dk), pin(dv);
      begin_products();
      start_rows<S>(scores, k, tile_descriptor(&tiles.q[side]));
      end_products();
      if constexpr (follows)
        start_sums<S>(dk, score_grads, tile_descriptor(&tiles.q[(n - 1) % stages]));
      start_rows<S>(grads, v, tile_descriptor(&tiles.grad[side]));
      end_products();
      if constexpr (follows) fetch(n + stages - 2);  // overwrites the tiles of the previous step
      __syncwarp();
      const ScoreRules<S, plain> rules(p, a.mask, a.control->random, b, h);
      const Statistics& statistics = tiles.statistics[side];
      const auto shown = ShownKeys<plain>::of_rows(rules, key0);
      const auto kept = Kept<plain, 8>::of_columns(rules, i0, key0);
      wait_products<1>();
      pin(scores);
      const bool every = !rules.masks() && (!p.causal || key0 + 15 <= i0) &&
                         (plain || (j0 + 64 * groups <= p.keys && i0 + 64 <= p.queries));
      float scale = static_cast<float>(p.scale) * log2_e;
      if (!every)
        scale = follow_rules(
            rules, scores, [&](int c, int e) { return i0 + 8 * c + 2 * t + e % 2; },
            [&](int, int e) { return key0 + g + e / 2 * 8; },
            [&](int, int e) { return shown.row(e / 2); });
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const float2 saved = *reinterpret_cast<const float2*>(&statistics.saved[8 * c + 2 * t]);
#pragma unroll
        for (int e = 0; e < 4; ++e)
          scores[c][e] = power_of_two(fmaf(scores[c][e], scale, -(e % 2 == 0 ? saved.x : saved.y)));
      }
      as_kept_factors<S>(weights, scores, kept);
      begin_products();
      start_sums<S>(dv, weights, tile_descriptor(&tiles.grad[side]));
      end_products();
      wait_products<1>();
      pin(grads), pin(dk);
      if constexpr (follows) tiles.ring.leave(n - 1);
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const float2 delta = *reinterpret_cast<const float2*>(&statistics.delta[8 * c + 2 * t]);
#pragma unroll
        for (int e = 0; e < 4; ++e)
          grads[c][e] = scores[c][e] * (kept(c, e, grads[c][e]) - (e % 2 == 0 ? delta.x : delta.y));
      }
      as_factors<S>(score_grads, grads);
      wait_products<0>();
      pin(dv);
    };

    int h = kv * p.group(), i0 = begin;
    step(0, h, i0, std::false_type{});
    for (int n = 1; n < all; ++n) {
      i0 += 64;
      if (i0 >= p.queries) i0 = begin, ++h;
      step(n, h, i0, std::true_type{});
    }
    pin(dk);
    begin_products();
    start_sums<S>(dk, score_grads, tile_descriptor(&tiles.q[(all - 1) % stages]));
    end_products();
    wait_products<0>();
    pin(dk);
  }
  const std::int64_t token = p.key_token(b, key0);
  const float keep = static_cast<float>(p.dropout.keep);
  const float scale = static_cast<float>(p.scale) * keep;
  write_pieces(a.dk.at(token, kv, p.size), a.dk.row, p.keys - key0, p.size, dk, {scale, scale});
  write_pieces(a.dv.at(token, kv, p.value_size), a.dv.row, p.keys - key0, p.value_size, dv,
               {keep, keep});
}

// --- dq

template <class S, int groups>
struct QueryTiles {
  Tile<S, 64 * groups> q, grad;
  Tile<S, 64> k[stages], v[stages];
  Barrier queries;
  Ring<stages> ring;
};

template <class S, int groups, int blocks, bool plain>
__global__ void __launch_bounds__(128 * groups, blocks)
    queries_kernel(const __grid_constant__ CudaProblem p, const __grid_constant__ GradMaps maps,
                   BackwardArgs<S> a, WorkOrder order) {
  extern __shared__ __align__(1024) uint4 memory[];
  auto& tiles = *reinterpret_cast<QueryTiles<S, groups>*>(memory);
  const auto [tile, head] = order(static_cast<int>(blockIdx.x));
  const int first = (order.tiles - 1 - tile) * 64 * groups;
  const int b = head / p.heads, h = head - b * p.heads, kv = h / p.group();
  const int warp = warp_number(), group = warp / 4, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4, row0 = first + warp * 16;
  // As in forward: a group stops at the last key of its last query, and the last group fetches.
  static_assert(groups <= stages);
  const int active = min(groups, (p.queries - first + 63) / 64);  // groups
  const int visible = p.visible_keys(min(first + (group + 1) * 64, p.queries));
  const int steps = (visible + 63) / 64;
  const bool fetches = threadIdx.x == (active - 1) * 128;
  const auto fetch = [&](int n) {
    if (!fetches || n >= steps) return;
    Barrier& there = tiles.ring.take(n, 2 * sizeof(tiles.k[0]));
    copy_tile(&tiles.k[n % stages], maps.k, there, n * 64, kv, b);
    copy_tile(&tiles.v[n % stages], maps.v, there, n * 64, kv, b);
  };
  if (fetches) {
    tiles.queries.init(1);
    tiles.ring.init(4 * active);
    publish_barriers();
    tiles.queries.arrive_and_expect(2 * sizeof(tiles.q));
    copy_tile(&tiles.q, maps.q, tiles.queries, first, h, b);
    copy_tile(&tiles.grad, maps.grad, tiles.queries, first, h, b);
  }
  for (int n = 0; n < stages - 1; ++n) fetch(n);
  __syncthreads();
  if (warp >= 4 * active) return;

  const Statistics* statistics = reinterpret_cast<const Statistics*>(a.delta) +
                                 static_cast<std::int64_t>(head) * ((p.queries + 63) / 64) +
                                 row0 / 64;
  float saved[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = row0 + g + 8 * half;
    saved[half] = i < p.queries ? statistics->saved[i % 64] : infinity<float>();
    delta[half] = i < p.queries ? statistics->delta[i % 64] : 0.0f;
  }
  const ScoreRules<S, plain> rules(p, a.mask, a.control->random, b, h);
  float dq[8][4] = {}, scores[8][4] = {}, grads[8][4] = {};
  std::uint32_t score_grads[4][4];
  tiles.queries.wait(0);
  const std::uint64_t q = tile_descriptor(&tiles.q) + group * next_group,
                      grad = tile_descriptor(&tiles.grad) + group * next_group;

  const auto step = [&](int n, auto follows) {
    const int j = n * 64, side = n % stages;
    tiles.ring.wait(n);
    pin(scores), pin(dq);
    begin_products();
    if constexpr (follows)
      start_sums<S>(dq, score_grads, tile_descriptor(&tiles.k[(n - 1) % stages]));
    start_rows<S>(scores, q, tile_descriptor(&tiles.k[side]));
    end_products();
    if constexpr (follows) fetch(n + stages - 2);
    __syncwarp();
    const auto shown = ShownKeys<plain>::of_columns(rules, j);
    const auto kept = Kept<plain, 8>::of_rows(rules, row0, j);
    wait_products<0>();
    pin(scores), pin(dq), pin(grads);
    if constexpr (follows) tiles.ring.leave(n - 1);
    begin_products();
    start_rows<S>(grads, grad, tile_descriptor(&tiles.v[side]));
    end_products();
    const bool every = !rules.masks() && j + 64 <= p.keys && (!p.causal || j + 63 <= row0);
    float scale = static_cast<float>(p.scale) * log2_e;
    if (!every)
      scale = follow_rules(
          rules, scores, [&](int, int e) { return row0 + g + e / 2 * 8; },
          [&](int c, int e) { return j + 8 * c + 2 * t + e % 2; },
          [&](int c, int e) { return shown.column(c, e % 2); });
#pragma unroll
    for (int c = 0; c < 8; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        scores[c][e] = power_of_two(fmaf(scores[c][e], scale, -saved[e / 2]));
    wait_products<0>();
    pin(grads);
#pragma unroll
    for (int c = 0; c < 8; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        grads[c][e] = scores[c][e] * (kept(c, e, grads[c][e]) - delta[e / 2]);
    as_factors<S>(score_grads, grads);
  };

  step(0, std::false_type{});
  for (int n = 1; n < steps; ++n) step(n, std::true_type{});
  pin(dq);
  begin_products();
  start_sums<S>(dq, score_grads, tile_descriptor(&tiles.k[(steps - 1) % stages]));
  end_products();
  wait_products<0>();
  pin(dq);
  const float scale = static_cast<float>(p.scale * p.dropout.keep);
  write_pieces(a.dq.at(p.query_token(b, row0), h, p.size), a.dq.row, p.queries - row0, p.size, dq,
               {scale, scale});
}

template <class S>
bool make_maps(GradMaps& maps, const CudaProblem& p, const BackwardArgs<S>& a, int query_rows,
               int key_rows) {
  return make_tile_map(maps.q, tile_source(a.q, p.q, p.batches, p.heads, p.queries, p.size),
                       query_rows) &&
         make_tile_map(maps.grad,
                       tile_source(a.grad, p.grad, p.batches, p.heads, p.queries, p.value_size),
                       query_rows) &&
         make_tile_map(maps.k, tile_source(a.k, p.k, p.batches, p.kv_heads, p.keys, p.size),
                       key_rows) &&
         make_tile_map(maps.v, tile_source(a.v, p.v, p.batches, p.kv_heads, p.keys, p.value_size),
                       key_rows);
}

template <class S>
void run_statistics(const KernelArgs& args, const CudaProblem& p, const BackwardArgs<S>& a) {
  const std::int64_t rows = ceil_div(p.queries, 64) * 64 * p.batches * p.heads;
  launch({args, "attention_grad", dim3(static_cast<unsigned>(rows / 32)), dim3(256)},
         statistics_kernel<S>, p, a);
}

template <class S, int groups, int blocks, bool plain>
void run_keys(const KernelArgs& args, const CudaProblem& p, const BackwardArgs<S>& a,
              const GradMaps& maps) {
  const WorkOrder order(static_cast<int>(ceil_div(p.keys, 64 * groups)), p.batches * p.kv_heads,
                        std::int64_t{p.queries} * p.group() * 2 * 128);
  launch({args, "attention_grad", order.grid(), dim3(128 * groups), sizeof(KeyTiles<S, groups>)},
         keys_kernel<S, groups, blocks, plain>, p, maps, a, order);
}

template <class S, int groups, int blocks, bool plain>
void run_queries(const KernelArgs& args, const CudaProblem& p, const BackwardArgs<S>& a,
                 const GradMaps& maps) {
  const WorkOrder order(static_cast<int>(ceil_div(p.queries, 64 * groups)), p.batches * p.heads,
                        std::int64_t{p.keys} * 2 * 128);
  launch({args, "attention_grad", order.grid(), dim3(128 * groups), sizeof(QueryTiles<S, groups>)},
         queries_kernel<S, groups, blocks, plain>, p, maps, a, order);
}

// Groups per block and blocks per multiprocessor are the fastest values on an H200.
template <class S, bool plain>
bool run_backward(const KernelArgs& args, const CudaProblem& p, const BackwardArgs<S>& a) {
  constexpr int key_groups = 1, query_groups = plain ? 2 : 3;
  GradMaps for_keys, for_queries;
  if (!make_maps(for_keys, p, a, 64, 64 * key_groups) ||
      !make_maps(for_queries, p, a, 64 * query_groups, 64))
    return false;
  run_statistics(args, p, a);
  run_keys<S, key_groups, 2, plain>(args, p, a, for_keys);
  run_queries<S, query_groups, plain ? 2 : 1, plain>(args, p, a, for_queries);
  return true;
}

}  // namespace

template <class S>
bool backward_wgmma(const KernelArgs& args, const CudaProblem& p, const BackwardArgs<S>& a) {
  if (!fits_wgmma(p) || !whole_pieces(a.q, p.q, p.size) || !whole_pieces(a.k, p.k, p.size) ||
      !whole_pieces(a.v, p.v, p.value_size) || !whole_pieces(a.o, p.o, p.value_size) ||
      !whole_pieces(a.grad, p.grad, p.value_size) ||
      !aligned_for_packs(a.dq.data, a.dk.data, a.dv.data, a.delta))
    return false;
  return p.plain() ? run_backward<S, true>(args, p, a) : run_backward<S, false>(args, p, a);
}

template bool backward_wgmma<Half>(const KernelArgs&, const CudaProblem&,
                                   const BackwardArgs<Half>&);
template bool backward_wgmma<BFloat16>(const KernelArgs&, const CudaProblem&,
                                       const BackwardArgs<BFloat16>&);

}  // namespace ebb::attention
