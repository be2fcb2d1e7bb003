// Flash-decoding (Dao et al., 2023): a block takes one token of one key head, with up to four query
// heads that read it, and one piece of the keys. A second kernel joins the pieces in their order.
// Pieces have a fixed number of keys, so results depend on no other token and on no cache size.
//
// Within a block a few neighbouring lanes read one key, 16 bytes each where the layout allows it,
// and hold their part of the running result; each such team takes every n-th key of the piece.
#include "ops/cached_attention/cached_attention.h"
#include "ops/cached_attention/pieces.cuh"
#include "ops/cuda/element.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/strided.cuh"
#include "ops/resident/steps.h"

namespace ebb {
namespace {

using namespace cuda;

struct Shapes {
  CachedAttentionProblem p;
  std::int64_t pieces;  // of the cache
  int lanes;            // that read one key
  std::int64_t record;  // elements of a piece's result: maximum, sum, values
};

// The threads of a block.
struct BlockTeam {
  int thread;
  __device__ void sync() const { __syncthreads(); }
};

template <class S, int vec, int chunks, int queries>
__global__ void __launch_bounds__(piece_threads)
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

  const std::int64_t head = kv_head * group + first,
                     line = (row * p.kv_heads + kv_head) * p.cache_tokens;
  extern __shared__ __align__(16) unsigned char memory[];
  attend_piece<S, vec, chunks, queries>(
      Piece<S>{q + b * p.batch_stride + head * p.head_stride + t * p.token_stride, p.head_stride,
               static_cast<int>(group - first < queries ? group - first : queries),
               keys + line * p.size, values + line * p.value_size, p.size, p.value_size,
               static_cast<C>(p.scale), begin, end, seen.begin, s.lanes,
               partial + ((token * p.heads + head) * s.pieces + piece) * s.record,
               s.pieces * s.record},
      BlockTeam{static_cast<int>(threadIdx.x)}, reinterpret_cast<C*>(memory));
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
  join_pieces<S>(partial + head * s.pieces * s.record, s.record, first, end, p.value_size, to,
                 static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
}

// The call as a task of a resident kernel.
resident::Attention attention(const CachedAttentionProblem& p, const KernelArgs& args) {
  using Op = CachedAttention;
  return {.q = args.inputs[Op::q],
          .keys = args.inputs[Op::keys],
          .values = args.inputs[Op::values],
          .positions = args.in<std::int32_t>(Op::positions),
          .rows = args.in<std::int32_t>(Op::rows),
          .partial = args.workspace,
          .out = args.outputs[0],
          .batch_stride = p.batch_stride,
          .head_stride = p.head_stride,
          .scale = p.scale,
          .batches = static_cast<std::int32_t>(p.batches),
          .heads = static_cast<std::int32_t>(p.heads),
          .kv_heads = static_cast<std::int32_t>(p.kv_heads),
          .size = static_cast<std::int32_t>(p.size),
          .value_size = static_cast<std::int32_t>(p.value_size),
          .cache_rows = static_cast<std::int32_t>(p.cache_rows),
          .cache_tokens = static_cast<std::int32_t>(p.cache_tokens),
          .window = static_cast<std::int32_t>(p.window),
          .instruction = args.instruction + 1};
}

template <class S, int vec, int chunks, int queries>
Kernel bind(const KernelRequest& request, Shapes s) {
  using C = Compute<S>;
  const std::int64_t width = std::max(s.p.size, s.p.value_size);
  s.lanes = lanes_of_key(width, vec, chunks);
  const Bytes workspace{s.p.batches * s.p.tokens * s.p.heads * s.pieces * s.record *
                        static_cast<std::int64_t>(sizeof(C))};
  const auto run = [s](const KernelArgs& args) {
    const CachedAttentionProblem& p = s.p;
    if (p.batches * p.tokens * p.heads * p.value_size == 0) return;
    const std::int64_t parts = ceil_div(p.group, queries);
    const dim3 grid(static_cast<unsigned>(p.batches * p.tokens),
                    static_cast<unsigned>(p.kv_heads * parts), static_cast<unsigned>(s.pieces));
    const std::size_t shared =
        static_cast<std::size_t>(piece_shared(s.lanes, p.value_size)) * sizeof(C);
    launch({args, "cached_attention", grid, dim3(piece_threads), shared},
           pieces_kernel<S, vec, chunks, queries>, s, args.in<S>(CachedAttention::q),
           args.in<S>(CachedAttention::keys), args.in<S>(CachedAttention::values),
           args.in<std::int32_t>(CachedAttention::positions),
           args.in<std::int32_t>(CachedAttention::rows), args.scratch<C>(), FaultSlot(args));
    launch({args, "cached_attention", dim3(static_cast<unsigned>(p.batches * p.tokens * p.heads)),
            dim3(64)},
           join_kernel<S>, s, args.in<std::int32_t>(CachedAttention::positions),
           args.in<std::int32_t>(CachedAttention::rows), args.scratch<C>(), args.out<S>());
  };
  if constexpr (sizeof(S) == 2 && vec == pack<S> && chunks == 1) {
    if (s.p.tokens == 1 && s.p.batches <= resident::most_rows && s.p.value_size > 0 &&
        s.p.batches * s.p.heads <= resident::most_heads) {
      resident::Step step = resident::step(request, run);
      step.task = [s](const KernelArgs& args) -> std::optional<resident::Task> {
        return attention(s.p, args);
      };
      return {step, workspace};
    }
  }
  return {run, workspace};
}

template <class S, int vec, int queries>
Kernel bind_chunks(const KernelRequest& request, const Shapes& s) {
  const std::int64_t width = std::max(s.p.size, s.p.value_size);
  if (width <= 32 * vec) return bind<S, vec, 1, queries>(request, s);
  if (width <= 64 * vec) return bind<S, vec, 2, queries>(request, s);
  if (width <= 256 * vec) return bind<S, vec, 8, queries>(request, s);
  request.no_kernel(request.out().dtype());
}

template <class S>
Kernel bind_type(const KernelRequest& request, const Shapes& s) {
  // Rows of the caches begin at multiples of 16 bytes, because buffers have a larger alignment.
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
  const Shapes s{p, ceil_div(p.cache_tokens, piece_keys), 0, 2 + p.value_size};
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    return bind_type<typename decltype(tag)::type>(request, s);
  });
}

}  // namespace ebb
