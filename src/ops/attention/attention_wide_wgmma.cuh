// Forward on the tensor cores of compute capability 9.0, for half types and heads of 65 to 128. A
// block stays on its multiprocessor and works through tiles of 128 queries. One warp fetches; two
// groups have 64 queries each. Within a group, as for smaller heads, the product with the previous
// values overlaps with the softmax of the next scores.
#pragma once

#include "ops/attention/wgmma_blocks.cuh"

namespace ebb::attention {
namespace wide {

inline constexpr int groups = 2, height = 64 * groups;  // queries of a tile
// One warp fetches, but registers can be moved only between whole groups.
inline constexpr int threads = 128 * groups + 128;

template <class S, int size, int width>
struct ForwardTiles {
  static constexpr int stages = 256 / width;
  RowTiles<S, height, size> q;
  RowTiles<S, width, size> k[stages], v[stages];
  Barrier queries, queries_left;
  Ring<stages> keys, values;
};

struct ForwardMaps {
  CUtensorMap q, k, v;
};

// The tiles of a block, one for each round. Tiles come longest first, so every other round goes
// through the blocks backwards, which evens out their work.
template <bool plain>
struct Rounds {
  const CudaProblem& p;
  const WorkOrder& order;
  const int2* bounds;  // of first keys

  struct Tile {
    int first, begin, steps;  // query; key; tiles of keys
    int head, b, h, kv;
  };
  __device__ bool operator()(int round, int width, Tile& tile) const {
    const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    const int item = round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
    if (item >= order.tiles * order.heads) return false;
    const auto [n, head] = order(item);
    tile.first = (order.tiles - 1 - n) * height;  // with a causal mask the last take longest
    tile.head = head, tile.b = head / p.heads, tile.h = head - tile.b * p.heads;
    const int end = min(tile.first + height, p.queries);
    tile.begin = FirstKeys<plain>(p, bounds, tile.b).first_key(p, tile.first, end, width);
    tile.steps = (p.visible_keys(end) - tile.begin + width - 1) / width;
    tile.kv = tile.h / p.group();
    return true;
  }
};

template <class S, int size, int width, bool plain>
__device__ void fetch_tiles(ForwardTiles<S, size, width>& tiles, const ForwardMaps& maps,
                            const Rounds<plain>& rounds) {
  constexpr int stages = ForwardTiles<S, size, width>::stages;
  typename Rounds<plain>::Tile tile;
  int n = 0;  // of all steps
  for (int round = 0; rounds(round, width, tile); ++round)
    for (int step = 0; step < tile.steps; ++step, ++n) {
      const int j = tile.begin + step * width;
      tiles.k[n % stages].copy(maps.k, tiles.keys.take(n, sizeof(tiles.k[0])), j, tile.kv, tile.b);
      if (step == 0) {
        if (round > 0) tiles.queries_left.wait((round & 1) ^ 1);
        tiles.queries.arrive_and_expect(sizeof(tiles.q));
        tiles.q.copy(maps.q, tiles.queries, tile.first, tile.h, tile.b);
      }
      tiles.v[n % stages].copy(maps.v, tiles.values.take(n, sizeof(tiles.v[0])), j, tile.kv,
                               tile.b);
    }
}

template <class S, int size, int width, bool plain>
__global__ void __launch_bounds__(threads, 1)
    forward_kernel(const __grid_constant__ CudaProblem p, const __grid_constant__ ForwardMaps maps,
                   ForwardArgs<S> a, const __grid_constant__ WorkOrder order) {
  extern __shared__ __align__(1024) uint4 memory[];
  auto& tiles = *reinterpret_cast<ForwardTiles<S, size, width>*>(memory);
  using Rows = decltype(tiles.q);
  constexpr int stages = ForwardTiles<S, size, width>::stages, columns = width / 8;
  const Rounds<plain> rounds{p, order, a.bounds};
  const int warp = warp_number(), group = warp / 4;
  if (threadIdx.x == 0) {
    tiles.queries.init(1), tiles.queries_left.init(4 * groups);
    tiles.keys.init(4 * groups), tiles.values.init(4 * groups);
    publish_barriers();
  }
  __syncthreads();
  if (group == groups) {
    give_up_registers<24>();
    if (threadIdx.x == 128 * groups) fetch_tiles(tiles, maps, rounds);
    return;
  }
  take_registers<240>();

  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const std::uint64_t q = tiles.q.descriptor() + group * next_group;
  typename Rounds<plain>::Tile tile, next;
  bool more = rounds(0, width, tile);
  int n = 0;  // of all steps
  for (int round = 0; more; ++round) {
    more = rounds(round + 1, width, next);
    const int row0 = tile.first + warp * 16;
    const ScoreRules<S, plain> rules(p, a.mask, a.control->random, tile.b, tile.h);
    const FirstKeys<plain> first_keys(p, a.bounds, tile.b);
    Running running;
    float out[size / 8][4] = {}, scores[columns][4];
    std::uint32_t weights[columns / 2][4];
    tiles.queries.wait(round & 1);
    tiles.keys.wait(n);
    begin_products();
    start_rows<Rows>(scores, q, tiles.k[n % stages]);
    end_products();
    auto shown = ShownKeys<plain>::of_columns(rules, tile.begin);
    auto kept = Kept<plain, columns>::of_rows(rules, row0, tile.begin);
    wait_products<0>();
    pin(scores);
    tiles.keys.leave(n);
    running.weigh(p, rules, first_keys, shown, row0, tile.begin, scores);
    as_kept_factors<S>(weights, scores, kept);
    ++n;
    for (int step = 1; step < tile.steps; ++step, ++n) {
      tiles.keys.wait(n), tiles.values.wait(n - 1);
      pin(scores), pin(out);
      begin_products();
      start_rows<Rows>(scores, q, tiles.k[n % stages]);
      end_products();
      start_sums(out, weights, tiles.v[(n - 1) % stages]);
      end_products();
      const int j = tile.begin + step * width;
      shown = ShownKeys<plain>::of_columns(rules, j);
      kept = Kept<plain, columns>::of_rows(rules, row0, j);
      wait_products<1>();
      pin(scores);
      tiles.keys.leave(n);
      running.weigh(p, rules, first_keys, shown, row0, j, scores);
      wait_products<0>();
      pin(out);
      tiles.values.leave(n - 1);
#pragma unroll
      for (int c = 0; c < size / 8; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[c][e] *= running.shrink[e / 2];
      as_kept_factors<S>(weights, scores, kept);
    }
    if (lane == 0) tiles.queries_left.arrive();
    tiles.values.wait(n - 1);
    pin(out);
    begin_products();
    start_sums(out, weights, tiles.v[(n - 1) % stages]);
    end_products();
    float inverse[2];
    const std::int64_t row = static_cast<std::int64_t>(tile.head) * p.queries + row0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = join_row(running.total[half], [](float x, float y) { return x + y; });
      inverse[half] = total == 0.0f ? 0.0f : rules.keep / total;
      if (t == 0 && row0 + g + 8 * half < p.queries)
        a.logsumexp[row + g + 8 * half] =
            total == 0.0f ? -infinity<float>() : running.most[half] * ln_2 + logf(total);
    }
    wait_products<0>();
    pin(out);
    tiles.values.leave(n - 1);
    write_pieces(a.o.at(p.query_token(tile.b, row0), tile.h, p.value_size), a.o.row,
                 p.queries - row0, p.value_size, out, inverse);
    tile = next;
  }
}

template <class S, int size, int width, bool plain>
bool run_forward(const KernelArgs& args, const CudaProblem& p, const ForwardArgs<S>& a) {
  ForwardMaps maps;
  if (!make_tile_map(maps.q, tile_source(a.q, p.q, p.batches, p.heads, p.queries, p.size),
                     height) ||
      !make_tile_map(maps.k, tile_source(a.k, p.k, p.batches, p.kv_heads, p.keys, p.size), width) ||
      !make_tile_map(maps.v, tile_source(a.v, p.v, p.batches, p.kv_heads, p.keys, p.value_size),
                     width))
    return false;
  run_first_key_bounds(args, "attention", p, a);
  const WorkOrder order(static_cast<int>(ceil_div(p.queries, height)), p.batches * p.heads,
                        std::int64_t{p.keys} * 4 * size / p.group());
  int device = 0, processors = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
  const dim3 grid(std::min(order.grid().x, static_cast<unsigned>(processors)));
  launch({args, "attention", grid, dim3(threads), sizeof(ForwardTiles<S, size, width>)},
         forward_kernel<S, size, width, plain>, p, maps, a, order);
  return true;
}

// Rows are read as if they had the next larger size that there is a kernel for; what a row does not
// have is zero. Kernels with a mask or dropout have one size, to keep their number small.
template <class S>
bool forward(const KernelArgs& args, const CudaProblem& p, const ForwardArgs<S>& a) {
  const int size = std::max(p.size, p.value_size);
  if (!p.plain()) return run_forward<S, 128, 64, false>(args, p, a);
  if (size <= 80) return run_forward<S, 80, 128, true>(args, p, a);
  if (size <= 96) return run_forward<S, 96, 128, true>(args, p, a);
  if (size <= 112) return run_forward<S, 112, 128, true>(args, p, a);
  return run_forward<S, 128, 128, true>(args, p, a);
}

}  // namespace wide
}  // namespace ebb::attention
