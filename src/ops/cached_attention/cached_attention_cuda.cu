// Flash-decoding (Dao et al., 2023): a block takes one token of one key head, with up to four query
// heads that read it, and one piece of the keys. A second kernel joins the pieces in their order.
// Pieces have a fixed number of keys, so results depend on no other token and on no cache size.
//
// Within a block a few neighbouring lanes read one key, 16 bytes each where the layout allows it,
// and hold their part of the running result; each such team takes every n-th key of the piece.
#include "ops/cached_attention/cached_attention.h"
#include "ops/cuda/element.cuh"
#include "ops/cuda/group.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/strided.cuh"

namespace ebb {
namespace {

using namespace cuda;

constexpr int piece_keys = 128, threads_per_block = 128, most_queries = 4;

struct Shapes {
  CachedAttentionProblem p;
  std::int64_t pieces, teams, lanes;  // of the cache; of a block; of a team
  std::int64_t record;                // elements of a piece's result: maximum, sum, values
};

// Elements of a row of n that lane `lane` of `lanes` holds: chunk c begins at (c · lanes + lane) ·
// vec.
template <class S, int vec>
__device__ void read_row(const S* from, std::int64_t at, std::int64_t size, Compute<S> (&to)[vec]) {
  if (at >= size) {
#pragma unroll
    for (int i = 0; i < vec; ++i) to[i] = Compute<S>(0);
    return;
  }
  if constexpr (vec == 1)
    to[0] = widen(from[at]);
  else
    load_pack<S>(from + at, to);
}

// Σ over the lanes of a team; every lane gets it. `lanes` is a power of two up to 32.
template <class C>
__device__ C team_sum(C value, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

template <class S, int vec, int chunks, int queries>
__global__ void __launch_bounds__(threads_per_block)
    pieces_kernel(Shapes s, const S* q, const S* keys, const S* values,
                  const std::int32_t* positions, const std::int32_t* rows, Compute<S>* partial,
                  FaultSlot fault) {
  using C = Compute<S>;
  const CachedAttentionProblem& p = s.p;
  const std::int64_t piece = blockIdx.z, token = blockIdx.x;  // b · T + t
  const std::int64_t group = p.group, parts = (group + queries - 1) / queries;
  const std::int64_t kv_head = blockIdx.y / parts, first = blockIdx.y % parts * queries;
  const std::int64_t b = quotient(token, p.tokens), t = token - b * p.tokens;
  const std::int64_t position = positions[token], row = rows[b];
  if (position < 0) return;
  if (position >= p.cache_tokens) return fault.out_of_range(token, position, p.cache_tokens);
  if (row < 0 || row >= p.cache_rows) return fault.out_of_range(b, row, p.cache_rows);
  const VisibleKeys seen = visible_keys(position, p.window);
  const std::int64_t begin = piece * piece_keys,
                     end = begin + piece_keys < seen.end ? begin + piece_keys : seen.end;
  if (begin >= end || end <= seen.begin) return;  // the second kernel reads no such piece

  const int lanes = static_cast<int>(s.lanes), teams = static_cast<int>(s.teams);
  const int team = static_cast<int>(threadIdx.x) / lanes,
            lane = static_cast<int>(threadIdx.x) % lanes;

  C query[queries][chunks][vec], result[queries][chunks][vec];
  C top[queries], sum[queries];
#pragma unroll
  for (int i = 0; i < queries; ++i) {
    top[i] = -infinity<C>(), sum[i] = C(0);
    const std::int64_t h = kv_head * group + (first + i < group ? first + i : 0);
    const S* from = q + b * p.batch_stride + h * p.head_stride + t * p.token_stride;
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      // Strides of q need not be multiples of 16 bytes: element by element.
#pragma unroll
      for (int e = 0; e < vec; ++e) {
        const std::int64_t at = (static_cast<std::int64_t>(c) * lanes + lane) * vec + e;
        query[i][c][e] = at < p.size ? widen(from[at]) * static_cast<C>(p.scale) : C(0);
        result[i][c][e] = C(0);
      }
    }
  }

  const std::int64_t line = (row * p.kv_heads + kv_head) * p.cache_tokens;
  // All lanes of a warp take part in every exchange, so teams run as often as each other.
  for (std::int64_t base = begin; base < end; base += teams) {
    const std::int64_t j = base + team;
    const bool visible = j < end && j >= seen.begin;
    const std::int64_t safe = j < end ? j : begin;  // a row that can be read
    C key[chunks][vec], value[chunks][vec];
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      const std::int64_t at = (static_cast<std::int64_t>(c) * lanes + lane) * vec;
      read_row<S, vec>(keys + (line + safe) * p.size, at, p.size, key[c]);
      read_row<S, vec>(values + (line + safe) * p.value_size, at, p.value_size, value[c]);
    }
#pragma unroll
    for (int i = 0; i < queries; ++i) {
      C score = C(0);
#pragma unroll
      for (int c = 0; c < chunks; ++c)
#pragma unroll
        for (int e = 0; e < vec; ++e) score += query[i][c][e] * key[c][e];
      score = team_sum(score, lanes);
      if (!visible) continue;
      const C next = score > top[i] ? score : top[i];
      const C base_score = next == -infinity<C>() ? C(0) : next;
      const C shrink = exponential(top[i] - base_score), weight = exponential(score - base_score);
      top[i] = next;
      sum[i] = sum[i] * shrink + weight;
#pragma unroll
      for (int c = 0; c < chunks; ++c)
#pragma unroll
        for (int e = 0; e < vec; ++e)
          result[i][c][e] = result[i][c][e] * shrink + weight * value[c][e];
    }
  }

  // Teams are joined in their order, one query after another, through shared memory.
  extern __shared__ __align__(16) unsigned char memory[];
  C* shared = reinterpret_cast<C*>(memory);  // (teams, 2 + value_size)
  const std::int64_t width = 2 + p.value_size;
#pragma unroll
  for (int i = 0; i < queries; ++i) {
    if (first + i >= group) break;
    __syncthreads();
    C* mine = shared + team * width;
    if (lane == 0) mine[0] = top[i], mine[1] = sum[i];
#pragma unroll
    for (int c = 0; c < chunks; ++c)
#pragma unroll
      for (int e = 0; e < vec; ++e) {
        const std::int64_t at = (static_cast<std::int64_t>(c) * lanes + lane) * vec + e;
        if (at < p.value_size) mine[2 + at] = result[i][c][e];
      }
    __syncthreads();
    C highest = -infinity<C>();
    for (int k = 0; k < teams; ++k) highest = Larger{}(highest, shared[k * width]);
    const C base_score = highest == -infinity<C>() ? C(0) : highest;
    C* to =
        partial + ((token * p.heads + kv_head * group + first + i) * s.pieces + piece) * s.record;
    for (std::int64_t d = threadIdx.x; d < p.value_size + 1; d += threads_per_block) {
      C joined = C(0);
      for (int k = 0; k < teams; ++k)
        joined += exponential(shared[k * width] - base_score) * shared[k * width + 1 + d];
      to[1 + d] = joined;
    }
    if (threadIdx.x == 0) to[0] = highest;
  }
}

// One block per token and query head.
template <class S>
__global__ void join_kernel(Shapes s, const std::int32_t* positions, const std::int32_t* rows,
                            const Compute<S>* partial, S* out) {
  using C = Compute<S>;
  const CachedAttentionProblem& p = s.p;
  const std::int64_t head = blockIdx.x, token = quotient(head, p.heads);
  const std::int64_t position = positions[token], row = rows[quotient(token, p.tokens)];
  S* to = out + head * p.value_size;
  if (position < 0 || position >= p.cache_tokens || row < 0 || row >= p.cache_rows) {
    for (std::int64_t d = threadIdx.x; d < p.value_size; d += blockDim.x) to[d] = narrow<S>(C(0));
    return;
  }
  const VisibleKeys seen = visible_keys(position, p.window);
  const std::int64_t first = seen.begin / piece_keys,
                     end = (seen.end + piece_keys - 1) / piece_keys;
  const C* from = partial + head * s.pieces * s.record;
  C highest = -infinity<C>();
  for (std::int64_t i = first; i < end; ++i) highest = Larger{}(highest, from[i * s.record]);
  const C base_score = highest == -infinity<C>() ? C(0) : highest;
  C total = C(0);
  for (std::int64_t i = first; i < end; ++i)
    total += exponential(from[i * s.record] - base_score) * from[i * s.record + 1];
  const C inverse = total == C(0) ? C(0) : C(1) / total;
  for (std::int64_t d = threadIdx.x; d < p.value_size; d += blockDim.x) {
    C joined = C(0);
    for (std::int64_t i = first; i < end; ++i)
      joined += exponential(from[i * s.record] - base_score) * from[i * s.record + 2 + d];
    to[d] = narrow<S>(joined * inverse);
  }
}

template <class S, int vec, int chunks, int queries>
Kernel bind(Shapes s) {
  using C = Compute<S>;
  const std::int64_t width = std::max(s.p.size, s.p.value_size);
  s.lanes = 1;
  while (s.lanes < 32 && s.lanes * vec * chunks < width) s.lanes *= 2;
  s.teams = threads_per_block / s.lanes;
  const Bytes workspace{s.p.batches * s.p.tokens * s.p.heads * s.pieces * s.record *
                        static_cast<std::int64_t>(sizeof(C))};
  return {
      [s](const KernelArgs& args) {
        const CachedAttentionProblem& p = s.p;
        if (p.batches * p.tokens * p.heads * p.value_size == 0) return;
        const std::int64_t parts = ceil_div(p.group, queries);
        const dim3 grid(static_cast<unsigned>(p.batches * p.tokens),
                        static_cast<unsigned>(p.kv_heads * parts), static_cast<unsigned>(s.pieces));
        const std::size_t shared =
            static_cast<std::size_t>(s.teams * (2 + p.value_size)) * sizeof(C);
        launch({args, "cached_attention", grid, dim3(threads_per_block), shared},
               pieces_kernel<S, vec, chunks, queries>, s, args.in<S>(CachedAttention::q),
               args.in<S>(CachedAttention::keys), args.in<S>(CachedAttention::values),
               args.in<std::int32_t>(CachedAttention::positions),
               args.in<std::int32_t>(CachedAttention::rows), args.scratch<C>(), FaultSlot(args));
        launch({args, "cached_attention",
                dim3(static_cast<unsigned>(p.batches * p.tokens * p.heads)), dim3(64)},
               join_kernel<S>, s, args.in<std::int32_t>(CachedAttention::positions),
               args.in<std::int32_t>(CachedAttention::rows), args.scratch<C>(), args.out<S>());
      },
      workspace};
}

template <class S, int vec, int queries>
Kernel bind_chunks(const KernelRequest& request, const Shapes& s) {
  const std::int64_t width = std::max(s.p.size, s.p.value_size);
  if (width <= 32 * vec) return bind<S, vec, 1, queries>(s);
  if (width <= 64 * vec) return bind<S, vec, 2, queries>(s);
  if (width <= 256 * vec) return bind<S, vec, 8, queries>(s);
  request.no_kernel(request.out().dtype());
}

template <class S>
Kernel bind_type(const KernelRequest& request, const Shapes& s) {
  // Rows of the caches begin at multiples of 16 bytes: buffers are aligned to more.
  const bool packed = s.p.size % pack<S> == 0 && s.p.value_size % pack<S> == 0 &&
                      request.in(CachedAttention::keys).offset % pack<S> == 0 &&
                      request.in(CachedAttention::values).offset % pack<S> == 0;
  const bool single = s.p.group <= 1;
  if (packed)
    return single ? bind_chunks<S, pack<S>, 1>(request, s)
                  : bind_chunks<S, pack<S>, most_queries>(request, s);
  return single ? bind_chunks<S, 1, 1>(request, s) : bind_chunks<S, 1, most_queries>(request, s);
}

}  // namespace

Kernel bind_cached_attention_cuda(const KernelRequest& request,
                                  const CachedAttentionAttributes& a) {
  const CachedAttentionProblem p(request, a);
  const Shapes s{p, ceil_div(p.cache_tokens, piece_keys), 0, 0, 2 + p.value_size};
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    return bind_type<typename decltype(tag)::type>(request, s);
  });
}

}  // namespace ebb
