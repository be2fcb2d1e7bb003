// Attention over one piece of a cache's keys, and the joining of pieces, by a team of threads.
//
// A few neighbouring lanes read one key, 16 bytes each where the layout allows it, and hold their
// part of the running result; each such group takes every n-th key of the piece.
#pragma once

#include "ops/cuda/element.cuh"
#include "ops/cuda/group.cuh"

namespace ebb::cuda {

inline constexpr int piece_keys = 128, piece_threads = 128, most_queries = 4;

// Lanes that read one key of `width` elements, `chunks` times `vec` each: a power of two up to 32.
constexpr int lanes_of_key(std::int64_t width, int vec, int chunks) {
  int lanes = 1;
  while (lanes < 32 && lanes * vec * chunks < width) lanes *= 2;
  return lanes;
}
// Elements of shared memory for the results of all groups of lanes.
constexpr std::int64_t piece_shared(int lanes, std::int64_t value_size) {
  return piece_threads / lanes * (2 + value_size);
}

template <class S>
struct Piece {
  const S* q;  // of the first of `queries` query heads, of which `heads` exist
  std::int64_t head_stride;
  int heads;
  const S *keys, *values;  // of one sequence and key head: (tokens, size), (tokens, value_size)
  std::int64_t size, value_size;
  Compute<S> scale;
  std::int64_t begin, end;  // keys of the piece; none after `end` is read
  std::int64_t visible;     // the first key that is seen
  int lanes;
  Compute<S>* to;            // (heads, maximum and sum and values): of each head
  std::int64_t head_record;  // elements from one head's to the next
};

// The part of a row of keys or values that a lane reads: chunk c begins at (c · lanes + lane) ·
// vec. It stays in its storage dtype until it is used, so that several rows can be in flight at
// once.
template <class S, int vec, int chunks>
struct RowPart {
  std::conditional_t<vec == 1, S, uint4> raw[chunks];

  __device__ void read(const S* row, int lane, int lanes, std::int64_t size) {
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      const std::int64_t at = (static_cast<std::int64_t>(c) * lanes + lane) * vec;
      if (at >= size)
        raw[c] = {};
      else if constexpr (vec == 1)
        raw[c] = row[at];
      else
        raw[c] = *reinterpret_cast<const uint4*>(row + at);
    }
  }
  __device__ void get(int chunk, Compute<S> (&to)[vec]) const {
    if constexpr (vec == 1)
      to[0] = widen(raw[chunk]);
    else
      unpack<S>(raw[chunk], to);
  }
};

// Σ over the lanes of a group; every lane gets it. `lanes` is a power of two up to 32.
template <class C>
__device__ C group_sum(C value, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

// `team` has `piece_threads` threads: `thread` is this one's number, sync() waits for all.
template <class S, int vec, int chunks, int queries, class Team>
__device__ void attend_piece(const Piece<S>& p, const Team& team, Compute<S>* shared) {
  using C = Compute<S>;
  const int lanes = p.lanes, groups = piece_threads / lanes;
  const int own = team.thread / lanes, lane = team.thread % lanes;

  C query[queries][chunks][vec], result[queries][chunks][vec];
  C top[queries], sum[queries];
#pragma unroll
  for (int i = 0; i < queries; ++i) {
    top[i] = -infinity<C>(), sum[i] = C(0);
    const S* from = p.q + (i < p.heads ? i : 0) * p.head_stride;
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      // Strides of q need not be multiples of 16 bytes: element by element.
#pragma unroll
      for (int e = 0; e < vec; ++e) {
        const std::int64_t at = (static_cast<std::int64_t>(c) * lanes + lane) * vec + e;
        query[i][c][e] = at < p.size ? widen(from[at]) * p.scale : C(0);
        result[i][c][e] = C(0);
      }
    }
  }

  // All lanes of a warp take part in every exchange, so all groups run the same number of
  // iterations.
  constexpr int at_once = chunks == 1 ? (queries == 1 ? 4 : 2) : 1;
  for (std::int64_t base = p.begin; base < p.end; base += at_once * groups) {
    RowPart<S, vec, chunks> key[at_once], value[at_once];
#pragma unroll
    for (int r = 0; r < at_once; ++r) {
      const std::int64_t j = base + r * groups + own, safe = j < p.end ? j : p.begin;
      key[r].read(p.keys + safe * p.size, lane, lanes, p.size);
      value[r].read(p.values + safe * p.value_size, lane, lanes, p.value_size);
    }
#pragma unroll
    for (int r = 0; r < at_once; ++r) {
      if (base + r * groups >= p.end) break;
      const std::int64_t j = base + r * groups + own;
      const bool visible = j < p.end && j >= p.visible;
#pragma unroll
      for (int i = 0; i < queries; ++i) {
        C score = C(0);
#pragma unroll
        for (int c = 0; c < chunks; ++c) {
          C k[vec];
          key[r].get(c, k);
#pragma unroll
          for (int e = 0; e < vec; ++e) score += query[i][c][e] * k[e];
        }
        score = group_sum(score, lanes);
        if (!visible) continue;
        const C next = score > top[i] ? score : top[i];
        const C base_score = next == -infinity<C>() ? C(0) : next;
        const C shrink = exponential(top[i] - base_score), weight = exponential(score - base_score);
        top[i] = next;
        sum[i] = sum[i] * shrink + weight;
#pragma unroll
        for (int c = 0; c < chunks; ++c) {
          C v[vec];
          value[r].get(c, v);
#pragma unroll
          for (int e = 0; e < vec; ++e) result[i][c][e] = result[i][c][e] * shrink + weight * v[e];
        }
      }
    }
  }

  // Groups are joined in order, one query after another, through shared memory.
  const std::int64_t width = 2 + p.value_size;
#pragma unroll
  for (int i = 0; i < queries; ++i) {
    if (i >= p.heads) break;
    team.sync();
    C* mine = shared + own * width;
    if (lane == 0) mine[0] = top[i], mine[1] = sum[i];
#pragma unroll
    for (int c = 0; c < chunks; ++c)
#pragma unroll
      for (int e = 0; e < vec; ++e) {
        const std::int64_t at = (static_cast<std::int64_t>(c) * lanes + lane) * vec + e;
        if (at < p.value_size) mine[2 + at] = result[i][c][e];
      }
    team.sync();
    C highest = -infinity<C>();
    for (int k = 0; k < groups; ++k) highest = Larger{}(highest, shared[k * width]);
    const C base_score = highest == -infinity<C>() ? C(0) : highest;
    C* to = p.to + i * p.head_record;
    for (std::int64_t d = team.thread; d < p.value_size + 1; d += piece_threads) {
      C joined = C(0);
      for (int k = 0; k < groups; ++k)
        joined += exponential(shared[k * width] - base_score) * shared[k * width + 1 + d];
      to[1 + d] = joined;
    }
    if (team.thread == 0) to[0] = highest;
  }
}

// One head's result from its pieces [first, end), each of `record` elements, in their order.
template <class S>
__device__ void join_pieces(const Compute<S>* from, std::int64_t record, std::int64_t first,
                            std::int64_t end, std::int64_t value_size, S* to, int thread,
                            int threads) {
  using C = Compute<S>;
  C highest = -infinity<C>();
  for (std::int64_t i = first; i < end; ++i) highest = Larger{}(highest, from[i * record]);
  const C base_score = highest == -infinity<C>() ? C(0) : highest;
  C total = C(0);
  for (std::int64_t i = first; i < end; ++i)
    total += exponential(from[i * record] - base_score) * from[i * record + 1];
  const C inverse = total == C(0) ? C(0) : C(1) / total;
  for (std::int64_t d = thread; d < value_size; d += threads) {
    C joined = C(0);
    for (std::int64_t i = first; i < end; ++i)
      joined += exponential(from[i * record] - base_score) * from[i * record + 2 + d];
    to[d] = narrow<S>(joined * inverse);
  }
}

}  // namespace ebb::cuda
