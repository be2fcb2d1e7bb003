// Forward on the tensor cores of compute capability 9.0, for half types and heads of up to 64
// (attention_wide_wgmma.cuh has those above).
// Products overlap with the softmax of the previous scores: a group issues the scores of the next
// keys and the product with the previous values, and waits only for the scores.
#include "ops/attention/wgmma_blocks.cuh"

namespace ebb::attention {
namespace {

constexpr int stages = 4;

template <class S, int groups>
struct ForwardTiles {
  RowTiles<S, 64 * groups, 64> q;
  RowTiles<S, 64, 64> k[stages], v[stages];
  Barrier queries;
  Ring<stages> ring;
};

struct ForwardMaps {
  CUtensorMap q, k, v;
};

template <class S, int groups, int blocks, bool plain>
__global__ void __launch_bounds__(128 * groups, blocks)
    forward_kernel(const __grid_constant__ CudaProblem p, const __grid_constant__ ForwardMaps maps,
                   ForwardArgs<S> a, WorkOrder order) {
  extern __shared__ __align__(1024) uint4 memory[];
  auto& tiles = *reinterpret_cast<ForwardTiles<S, groups>*>(memory);
  using QueryTiles = decltype(tiles.q);
  constexpr int height = 64 * groups;
  const auto [tile, head] = order(static_cast<int>(blockIdx.x));
  const int first =
      (order.tiles - 1 - tile) * height;  // with a causal mask the last tiles take longest
  const int b = head / p.heads, h = head - b * p.heads, kv = h / p.group();
  const int warp = warp_number(), group = warp / 4;
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const int row0 = first + warp * 16;  // of the warp
  // A group stops at the last key of its last query; the last group, which fetches, has the most
  // keys.
  static_assert(groups <= stages);
  const int active = min(groups, (p.queries - first + 63) / 64);  // groups
  const int visible = p.visible_keys(min(first + (group + 1) * 64, p.queries));
  const FirstKeys<plain> first_keys(p, a.bounds, b);
  const int begin =
      first_keys.first_key(p, first, min(first + height, p.queries), 64);  // of all groups
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
    tiles.queries.arrive_and_expect(sizeof(tiles.q));
    tiles.q.copy(maps.q, tiles.queries, first, h, b);
  }
  for (int n = 0; n < stages - 1; ++n) fetch(n);
  __syncthreads();
  if (warp >= 4 * active) return;

  const ScoreRules<S, plain> rules(p, a.mask, a.control->random, b, h);
  const std::uint64_t q = tiles.q.descriptor() + group * next_group;
  Running running;
  float out[8][4] = {}, scores[8][4];
  std::uint32_t weights[4][4];
  tiles.queries.wait(0);
  tiles.ring.wait(0);
  begin_products();
  start_rows<QueryTiles>(scores, q, tiles.k[0]);
  end_products();
  ShownKeys<plain> shown = ShownKeys<plain>::of_columns(rules, begin);
  Kept<plain, 8> kept = Kept<plain, 8>::of_rows(rules, row0, begin);
  wait_products<0>();
  pin(scores);
  running.weigh(p, rules, first_keys, shown, row0, begin, scores);
  as_kept_factors<S>(weights, scores, kept);
  for (int n = 1; n < steps; ++n) {
    tiles.ring.wait(n);
    pin(scores), pin(out);
    begin_products();
    start_rows<QueryTiles>(scores, q, tiles.k[n % stages]);
    end_products();
    start_sums(out, weights, tiles.v[(n - 1) % stages]);
    end_products();
    fetch(n + stages - 2);  // overwrites the tile of the previous step
    __syncwarp();
    const int j = begin + n * 64;
    shown = ShownKeys<plain>::of_columns(rules, j);
    kept = Kept<plain, 8>::of_rows(rules, row0, j);
    wait_products<1>();
    pin(scores);
    running.weigh(p, rules, first_keys, shown, row0, j, scores);
    wait_products<0>();
    pin(out);
    tiles.ring.leave(n - 1);
#pragma unroll
    for (int c = 0; c < 8; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[c][e] *= running.shrink[e / 2];
    as_kept_factors<S>(weights, scores, kept);
  }
  pin(out);
  begin_products();
  start_sums(out, weights, tiles.v[(steps - 1) % stages]);
  end_products();
  wait_products<0>();
  pin(out);

  const std::int64_t row = static_cast<std::int64_t>(head) * p.queries + row0;
  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = join_row(running.total[half], [](float x, float y) { return x + y; });
    inverse[half] = total == 0.0f ? 0.0f : rules.keep / total;
    if (t == 0 && row0 + g + 8 * half < p.queries)
      a.logsumexp[row + g + 8 * half] =
          total == 0.0f ? -infinity<float>() : running.most[half] * ln_2 + logf(total);
  }
  write_pieces(a.o.at(p.query_token(b, row0), h, p.value_size), a.o.row, p.queries - row0,
               p.value_size, out, inverse);
}

template <class S, int groups, int blocks, bool plain>
bool run_forward(const KernelArgs& args, const CudaProblem& p, const ForwardArgs<S>& a) {
  ForwardMaps maps;
  if (!make_tile_map(maps.q, tile_source(a.q, p.q, p.batches, p.heads, p.queries, p.size),
                     64 * groups) ||
      !make_tile_map(maps.k, tile_source(a.k, p.k, p.batches, p.kv_heads, p.keys, p.size), 64) ||
      !make_tile_map(maps.v, tile_source(a.v, p.v, p.batches, p.kv_heads, p.keys, p.value_size),
                     64))
    return false;
  run_first_key_bounds(args, "attention", p, a);
  const WorkOrder order(static_cast<int>(ceil_div(p.queries, 64 * groups)), p.batches * p.heads,
                        std::int64_t{p.keys} * 2 * 128);
  launch({args, "attention", order.grid(), dim3(128 * groups), sizeof(ForwardTiles<S, groups>)},
         forward_kernel<S, groups, blocks, plain>, p, maps, a, order);
  return true;
}

}  // namespace

template <class S>
bool forward_wgmma(const KernelArgs& args, const CudaProblem& p, const ForwardArgs<S>& a) {
  if (!fits_wgmma(p) || !whole_pieces(a.q, p.q, p.size) || !whole_pieces(a.k, p.k, p.size) ||
      !whole_pieces(a.v, p.v, p.value_size) || !aligned_for_packs(a.o.data))
    return false;
  if (std::max(p.size, p.value_size) > 64) return wide::forward(args, p, a);
  return p.plain() ? run_forward<S, 2, 2, true>(args, p, a)
                   : run_forward<S, 1, 3, false>(args, p, a);
}

template bool forward_wgmma<Half>(const KernelArgs&, const CudaProblem&, const ForwardArgs<Half>&);
template bool forward_wgmma<BFloat16>(const KernelArgs&, const CudaProblem&,
                                      const ForwardArgs<BFloat16>&);

}  // namespace ebb::attention
