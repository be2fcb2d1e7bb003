// Backward on the tensor cores of compute capability 9.0, for half types and heads of up to 128:
// the two kernels of attention_grad_mma.cuh, with products that overlap with the arithmetic of the
// previous step. Each step has three parts: weights from scores, gradients of scores from gradients
// of weights, and issuing the next step's products. Products of the last step and of this one run
// during the first two parts.
#pragma once

#include "ops/attention/statistics.cuh"

namespace ebb::attention {
namespace grad {

constexpr int stages = 4;

// --- dk and dv: rows of results are keys, columns queries.

template <class S, int size, int groups>
struct KeyTiles {
  RowTiles<S, 64 * groups, size> k, v;
  RowTiles<S, 64, size> q[stages], grad[stages];
  Statistics statistics[stages];
  Barrier keys;
  Ring<stages> ring;
};

struct GradMaps {
  CUtensorMap q, k, v, grad;
};

template <class S, int size, int groups, int blocks, bool plain>
__global__ void __launch_bounds__(128 * groups, blocks)
    keys_kernel(const __grid_constant__ CudaProblem p, const __grid_constant__ GradMaps maps,
                BackwardArgs<S> a, WorkOrder order) {
  extern __shared__ __align__(1024) uint4 memory[];
  auto& tiles = *reinterpret_cast<KeyTiles<S, size, groups>*>(memory);
  using Rows = decltype(tiles.k);
  const auto [tile, head] = order(static_cast<int>(blockIdx.x));
  const int j0 = tile * 64 * groups, b = head / p.kv_heads, kv = head - b * p.kv_heads;
  const int warp = warp_number(), lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4, key0 = j0 + warp * 16;
  const FirstKeys<plain> first_keys(p, a.bounds, b);
  const int begin = p.first_query(j0),
            end = first_keys.end_query(p, min(j0 + 64 * groups, p.keys) - 1);
  const int steps = begin < end ? (end - begin + 63) / 64 : 0;
  const int all = steps * p.group();  // tiles of queries of every head that reads these keys
  const int active = min(groups, (p.keys - j0 + 63) / 64);  // groups

  const auto fetch = [&](int n) {
    if (threadIdx.x != 0 || n >= all) return;
    const int h = kv * p.group() + n / steps, i = begin + n % steps * 64, s = n % stages;
    Barrier& there = tiles.ring.take(
        n, sizeof(tiles.q[s]) + sizeof(tiles.grad[s]) + sizeof(tiles.statistics[s]));
    tiles.q[s].copy(maps.q, there, i, h, b);
    tiles.grad[s].copy(maps.grad, there, i, h, b);
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
    tiles.k.copy(maps.k, tiles.keys, j0, kv, b);
    tiles.v.copy(maps.v, tiles.keys, j0, kv, b);
  }
  for (int n = 0; n < stages - 1; ++n) fetch(n);
  __syncthreads();
  if (warp >= 4 * active) return;

  float dk[size / 8][4] = {}, dv[size / 8][4] = {};
  if (all > 0) {
    tiles.keys.wait(0);
    const std::uint64_t k = tiles.k.descriptor() + warp / 4 * next_group,
                        v = tiles.v.descriptor() + warp / 4 * next_group;
    float scores[8][4] = {}, grads[8][4] = {};
    std::uint32_t weights[4][4], score_grads[4][4];

    const auto step = [&](int n, int h, int i0, auto follows) {
      const int side = n % stages;
      tiles.ring.wait(n);
      pin(scores), pin(grads), pin(dk), pin(dv);
      begin_products();
      start_rows<Rows>(scores, k, tiles.q[side]);
      end_products();
      if constexpr (follows) start_sums(dk, score_grads, tiles.q[(n - 1) % stages]);
      start_rows<Rows>(grads, v, tiles.grad[side]);
      end_products();
      if constexpr (follows) fetch(n + stages - 2);  // overwrites the tiles of the previous step
      __syncwarp();
      const ScoreRules<S, plain> rules(p, a.mask, a.control->random, b, h);
      const Statistics& statistics = tiles.statistics[side];
      const auto shown = ShownKeys<plain>::of_rows(rules, key0);
      const auto kept = Kept<plain, 8>::of_columns(rules, i0, key0);
      wait_products<1>();
      pin(scores);
      const bool every = !rules.masks_all() && (!p.causal || key0 + 15 <= i0) &&
                         (plain || (j0 + 64 * groups <= p.keys && i0 + 64 <= p.queries)) &&
                         first_keys.sees(i0, key0);
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
      start_sums(dv, weights, tiles.grad[side]);
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
      if (i0 >= end) i0 = begin, ++h;
      step(n, h, i0, std::true_type{});
    }
    pin(dk);
    begin_products();
    start_sums(dk, score_grads, tiles.q[(all - 1) % stages]);
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

template <class S, int size, int groups>
struct QueryTiles {
  RowTiles<S, 64 * groups, size> q, grad;
  RowTiles<S, 64, size> k[stages], v[stages];
  Barrier queries;
  Ring<stages> ring;
};

template <class S, int size, int groups, int blocks, bool plain>
__global__ void __launch_bounds__(128 * groups, blocks)
    queries_kernel(const __grid_constant__ CudaProblem p, const __grid_constant__ GradMaps maps,
                   BackwardArgs<S> a, WorkOrder order) {
  extern __shared__ __align__(1024) uint4 memory[];
  auto& tiles = *reinterpret_cast<QueryTiles<S, size, groups>*>(memory);
  using Rows = decltype(tiles.q);
  const auto [tile, head] = order(static_cast<int>(blockIdx.x));
  const int first = (order.tiles - 1 - tile) * 64 * groups;
  const int b = head / p.heads, h = head - b * p.heads, kv = h / p.group();
  const int warp = warp_number(), group = warp / 4, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4, row0 = first + warp * 16;
  // As in forward: a group stops at the last key of its last query, and the last group fetches.
  static_assert(groups <= stages);
  const int active = min(groups, (p.queries - first + 63) / 64);  // groups
  const int visible = p.visible_keys(min(first + (group + 1) * 64, p.queries));
  const FirstKeys<plain> first_keys(p, a.bounds, b);
  const int begin =
      first_keys.first_key(p, first, min(first + 64 * groups, p.queries), 64);  // of all groups
  const int steps = (visible - begin + 63) / 64;
  const bool fetches = threadIdx.x == (active - 1) * 128;
  const auto fetch = [&](int n) {
    if (!fetches || n >= steps) return;
    Barrier& there = tiles.ring.take(n, 2 * sizeof(tiles.k[0]));
    tiles.k[n % stages].copy(maps.k, there, begin + n * 64, kv, b);
    tiles.v[n % stages].copy(maps.v, there, begin + n * 64, kv, b);
  };
  if (fetches) {
    tiles.queries.init(1);
    tiles.ring.init(4 * active);
    publish_barriers();
    tiles.queries.arrive_and_expect(2 * sizeof(tiles.q));
    tiles.q.copy(maps.q, tiles.queries, first, h, b);
    tiles.grad.copy(maps.grad, tiles.queries, first, h, b);
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
  float dq[size / 8][4] = {}, scores[8][4] = {}, grads[8][4] = {};
  std::uint32_t score_grads[4][4];
  tiles.queries.wait(0);
  const std::uint64_t q = tiles.q.descriptor() + group * next_group,
                      grad = tiles.grad.descriptor() + group * next_group;

  const auto step = [&](int n, auto follows) {
    const int j = begin + n * 64, side = n % stages;
    tiles.ring.wait(n);
    pin(scores), pin(dq);
    begin_products();
    if constexpr (follows) start_sums(dq, score_grads, tiles.k[(n - 1) % stages]);
    start_rows<Rows>(scores, q, tiles.k[side]);
    end_products();
    if constexpr (follows) fetch(n + stages - 2);
    __syncwarp();
    const auto shown = ShownKeys<plain>::of_columns(rules, j);
    const auto kept = Kept<plain, 8>::of_rows(rules, row0, j);
    wait_products<0>();
    pin(scores), pin(dq), pin(grads);
    if constexpr (follows) tiles.ring.leave(n - 1);
    begin_products();
    start_rows<Rows>(grads, grad, tiles.v[side]);
    end_products();
    const bool every = !rules.masks_all() && j + 64 <= p.keys && (!p.causal || j + 63 <= row0) &&
                       first_keys.sees(min(row0, p.queries - 1), j);
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
  start_sums(dq, score_grads, tiles.k[(steps - 1) % stages]);
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

template <class S, int size, int groups, int blocks, bool plain>
void run_keys(const KernelArgs& args, const CudaProblem& p, const BackwardArgs<S>& a,
              const GradMaps& maps) {
  const WorkOrder order(static_cast<int>(ceil_div(p.keys, 64 * groups)), p.batches * p.kv_heads,
                        std::int64_t{p.queries} * p.group() * 4 * size);
  launch(
      {args, "attention_grad", order.grid(), dim3(128 * groups), sizeof(KeyTiles<S, size, groups>)},
      keys_kernel<S, size, groups, blocks, plain>, p, maps, a, order);
}

template <class S, int size, int groups, int blocks, bool plain>
void run_queries(const KernelArgs& args, const CudaProblem& p, const BackwardArgs<S>& a,
                 const GradMaps& maps) {
  const WorkOrder order(static_cast<int>(ceil_div(p.queries, 64 * groups)), p.batches * p.heads,
                        std::int64_t{p.keys} * 4 * size);
  launch({args, "attention_grad", order.grid(), dim3(128 * groups),
          sizeof(QueryTiles<S, size, groups>)},
         queries_kernel<S, size, groups, blocks, plain>, p, maps, a, order);
}

// Groups per block and blocks per multiprocessor are the fastest values on an H200.
template <class S, int size, bool plain>
bool run(const KernelArgs& args, const CudaProblem& p, const BackwardArgs<S>& a) {
  constexpr bool wide = size > 64;
  constexpr int key_groups = wide ? 2 : 1, key_blocks = wide ? 1 : 2;
  constexpr bool three = wide ? plain && size == 128 : !plain;
  constexpr int query_groups = three ? 3 : 2, query_blocks = !wide && plain ? 2 : 1;
  GradMaps for_keys, for_queries;
  if (!make_maps(for_keys, p, a, 64, 64 * key_groups) ||
      !make_maps(for_queries, p, a, 64 * query_groups, 64))
    return false;
  run_statistics(args, p, a);
  run_first_key_bounds(args, "attention_grad", p, a);
  run_keys<S, size, key_groups, key_blocks, plain>(args, p, a, for_keys);
  run_queries<S, size, query_groups, query_blocks, plain>(args, p, a, for_queries);
  return true;
}

}  // namespace grad

// As in forward, sizes are rounded up.
template <class S, bool plain>
bool wide::backward(const KernelArgs& args, const CudaProblem& p, const BackwardArgs<S>& a) {
  const int size = std::max(p.size, p.value_size);
  if constexpr (plain) {
    if (size <= 80) return grad::run<S, 80, plain>(args, p, a);
    if (size <= 96) return grad::run<S, 96, plain>(args, p, a);
    if (size <= 112) return grad::run<S, 112, plain>(args, p, a);
  }
  return grad::run<S, 128, plain>(args, p, a);
}
}  // namespace ebb::attention
