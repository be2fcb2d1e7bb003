// Forward on the tensor cores of compute capability 9.0, for half types and heads of up to 64.
// Products overlap with the softmax of the previous scores: a group issues the scores of the next
// keys and the product with the previous values, and waits only for the scores.
#include "ops/attention/wgmma_blocks.cuh"

namespace ebb::attention {
namespace {

constexpr int stages = 4;

template <class S, int groups>
struct ForwardTiles {
  Tile<S, 64 * groups> q;
  Tile<S, 64> k[stages], v[stages];
  Barrier queries;
  Ring<stages> ring;
};

struct ForwardMaps {
  CUtensorMap q, k, v;
};

// Turns a tile of scores into weights. Updates the running maximum (times the scale and log2(e))
// and this lane's part of the running sum, and gives the factor for earlier sums.
struct Running {
  float most[2] = {-infinity<float>(), -infinity<float>()}, total[2] = {}, shrink[2];

  template <class S, bool plain>
  __device__ void weigh(const CudaProblem& p, const ScoreRules<S, plain>& rules,
                        const ShownKeys<plain>& shown, int row0, int j, float (&scores)[8][4]) {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
    const bool every = !rules.masks() && j + 64 <= p.keys && (!p.causal || j + 63 <= row0);
    float scale = static_cast<float>(p.scale) * log2_e;
    if (!every)
      scale = follow_rules(
          rules, scores, [&](int, int e) { return row0 + g + e / 2 * 8; },
          [&](int n, int e) { return j + 8 * n + 2 * t + e % 2; },
          [&](int n, int e) { return shown.column(n, e % 2); });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = scores[0][2 * half];
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) top = fmaxf(top, scores[n][2 * half + e]);
      top = join_row(top, [](float x, float y) { return fmaxf(x, y); });
      top = fmaxf(most[half], top * scale);
      const float base = top == -infinity<float>() ? 0.0f : top;  // no key yet: any finite base
      shrink[half] = power_of_two(most[half] - base);
      most[half] = top;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& s = scores[n][2 * half + e];
          s = power_of_two(fmaf(s, scale, -base));
          sum += s;
        }
      total[half] = total[half] * shrink[half] + sum;
    }
  }
};

template <class S, int groups, int blocks, bool plain>
__global__ void __launch_bounds__(128 * groups, blocks)
    forward_kernel(const __grid_constant__ CudaProblem p, const __grid_constant__ ForwardMaps maps,
                   ForwardArgs<S> a, WorkOrder order) {
  extern __shared__ __align__(1024) uint4 memory[];
  auto& tiles = *reinterpret_cast<ForwardTiles<S, groups>*>(memory);
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
    tiles.queries.arrive_and_expect(sizeof(tiles.q));
    copy_tile(&tiles.q, maps.q, tiles.queries, first, h, b);
  }
  for (int n = 0; n < stages - 1; ++n) fetch(n);
  __syncthreads();
  if (warp >= 4 * active) return;

  const ScoreRules<S, plain> rules(p, a.mask, a.control->random, b, h);
  const std::uint64_t q = tile_descriptor(&tiles.q) + group * next_group;
  Running running;
  float out[8][4] = {}, scores[8][4];
  std::uint32_t weights[4][4];
  tiles.queries.wait(0);
  tiles.ring.wait(0);
  begin_products();
  start_rows<S>(scores, q, tile_descriptor(&tiles.k[0]));
  end_products();
  ShownKeys<plain> shown = ShownKeys<plain>::of_columns(rules, 0);
  Kept<plain, 8> kept = Kept<plain, 8>::of_rows(rules, row0, 0);
  wait_products<0>();
  pin(scores);
  running.weigh(p, rules, shown, row0, 0, scores);
  as_kept_factors<S>(weights, scores, kept);
  for (int n = 1; n < steps; ++n) {
    tiles.ring.wait(n);
    pin(scores), pin(out);
    begin_products();
    start_rows<S>(scores, q, tile_descriptor(&tiles.k[n % stages]));
    end_products();
    start_sums<S>(out, weights, tile_descriptor(&tiles.v[(n - 1) % stages]));
    end_products();
    fetch(n + stages - 2);  // overwrites the tile of the previous step
    __syncwarp();
    shown = ShownKeys<plain>::of_columns(rules, n * 64);
    kept = Kept<plain, 8>::of_rows(rules, row0, n * 64);
    wait_products<1>();
    pin(scores);
    running.weigh(p, rules, shown, row0, n * 64, scores);
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
  start_sums<S>(out, weights, tile_descriptor(&tiles.v[(steps - 1) % stages]));
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
  return p.plain() ? run_forward<S, 2, 2, true>(args, p, a)
                   : run_forward<S, 1, 3, false>(args, p, a);
}

template bool forward_wgmma<Half>(const KernelArgs&, const CudaProblem&, const ForwardArgs<Half>&);
template bool forward_wgmma<BFloat16>(const KernelArgs&, const CudaProblem&,
                                      const ForwardArgs<BFloat16>&);

}  // namespace ebb::attention
