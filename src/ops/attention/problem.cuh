// Attention as kernels are given it, and what forward and backward share element by element.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/attention/attention.h"
#include "ops/cuda/element.cuh"
#include "ops/cuda/launch.cuh"

namespace ebb::attention {

// A (B, H, T, D) tensor by its strides in elements; the last is 1.
struct HeadSteps {
  std::int64_t batch = 0, head = 0, row = 0;

  HeadSteps() = default;
  explicit HeadSteps(const Arg& arg)
      : batch(arg.strides[0]), head(arg.strides[1]), row(arg.strides[2]) {}
  __device__ std::int64_t at(std::int64_t b, std::int64_t h) const { return b * batch + h * head; }
};

struct CudaProblem {
  int batches, heads, kv_heads, queries, keys, size, value_size;
  HeadSteps q, k, v, o, grad;
  bool causal, masked = false, boolean_mask = false;
  double scale;
  double dropout;
  std::uint64_t key;
  std::int64_t mask_stride[4] = {};  // 0 along axes of size 1

  CudaProblem(const KernelRequest& request, const AttentionAttributes& a, int mask_input)
      : q(request.in(0)),
        k(request.in(1)),
        v(request.in(2)),
        causal(a.causal),
        scale(a.scale),
        dropout(a.dropout),
        key(a.key.value) {
    const Shape &qs = request.in(0).shape(), &vs = request.in(2).shape();
    batches = static_cast<int>(qs[0]), heads = static_cast<int>(qs[1]);
    kv_heads = static_cast<int>(vs[1]), queries = static_cast<int>(qs[2]);
    keys = static_cast<int>(vs[2]), size = static_cast<int>(qs[3]);
    value_size = static_cast<int>(vs[3]);
    if (static_cast<int>(request.inputs.size()) <= mask_input) return;
    const Arg& arg = request.in(mask_input);
    masked = true, boolean_mask = arg.dtype() == b8;
    for (int i = 0; i < 4; ++i) mask_stride[i] = arg.shape()[i] == 1 ? 0 : arg.strides[i];
  }

  // Where row i of head h of batch b begins in a result that lies token by token, in rows.
  __device__ std::int64_t query_row(int b, int h, int i) const {
    return (static_cast<std::int64_t>(b) * queries + i) * heads + h;
  }
  __device__ std::int64_t key_row(int b, int h, int j) const {
    return (static_cast<std::int64_t>(b) * keys + j) * kv_heads + h;
  }

  bool plain() const { return !masked && dropout == 0.0; }
  __host__ __device__ int group() const { return kv_heads > 0 ? heads / kv_heads : 0; }
  // Keys that some query before `end` sees, and the first query that sees some key from `begin` on.
  __device__ int visible_keys(int end) const { return causal && end < keys ? end : keys; }
  __device__ int first_query(int begin) const { return causal ? begin : 0; }
};

// What is done to one score, at (i, j) of head h of batch b. Plain: there is neither a mask nor
// dropout.
template <class S, bool plain = false>
struct ScoreRules {
  using T = Compute<S>;
  const CudaProblem& p;
  const void* mask;    // of head h
  std::int64_t first;  // number of the head's first score among all, for dropout
  Philox philox;
  float threshold;
  T keep;

  __device__ ScoreRules(const CudaProblem& problem, const void* mask_data, RandomState random,
                        int b, int h)
      : p(problem),
        mask(nullptr),
        first((static_cast<std::int64_t>(b) * p.heads + h) * p.queries * p.keys),
        philox(random, RandomKey{p.key}),
        threshold(static_cast<float>(p.dropout)),
        keep(static_cast<T>(1.0 / (1.0 - p.dropout))) {
    const std::int64_t at = b * p.mask_stride[0] + h * p.mask_stride[1];
    if (!plain && p.masked)
      mask = p.boolean_mask
                 ? static_cast<const void*>(static_cast<const std::uint8_t*>(mask_data) + at)
                 : static_cast<const S*>(mask_data) + at;
  }

  // A scaled score, or -inf where query i does not see key j.
  __device__ T masked(T score, int i, int j) const {
    if (i >= p.queries || j >= p.keys || (p.causal && j > i)) return -cuda::infinity<T>();
    if (plain || !p.masked) return score;
    const std::int64_t at = i * p.mask_stride[2] + j * p.mask_stride[3];
    if (p.boolean_mask)
      return static_cast<const std::uint8_t*>(mask)[at] ? score : -cuda::infinity<T>();
    return score + cuda::widen(static_cast<const S*>(mask)[at]);
  }

  // The factor of dropout: what the dropout_mask op gives to element (b, h, i, j).
  __device__ T factor(int i, int j) const {
    return factor_of(word(philox, first + static_cast<std::int64_t>(i) * p.keys + j));
  }
  // Never inlined, as the loops that ask for it are unrolled; by value, so that the rules need no
  // address and can stay in registers.
  __device__ __noinline__ static std::uint32_t word(Philox philox, std::int64_t index) {
    const auto words = philox(static_cast<std::uint64_t>(index / 4));
    const std::uint32_t low = index % 2 == 0 ? words[0] : words[1],
                        high = index % 2 == 0 ? words[2] : words[3];
    return index % 4 < 2 ? low : high;
  }
  // Whether every four neighbouring keys of a query, from a multiple of four on, share a counter.
  __device__ bool by_fours() const { return p.keys % 4 == 0; }
  __device__ T factor_of(std::uint32_t word) const {
    return uniform_from_bits(word) < threshold ? T(0) : keep;
  }

  // The factors at (i, j) and (i, j + 1), for two numbers n of pairs at once: j = first + 8 n + 2
  // t, where lanes t and t ^ 1 share a counter. Even lanes draw for both the first n, odd ones the
  // second, and they swap what the other needs.
  __device__ void pairs(int i, int j, int t, T (&first_pair)[2], T (&second_pair)[2]) const {
    const bool odd = t % 2 != 0;
    const int four = j - 2 * (t % 2) + (odd ? 8 : 0);  // of the pair this lane draws for
    const std::int64_t index = first + static_cast<std::int64_t>(i) * p.keys + four;
    const auto words = philox(static_cast<std::uint64_t>(index / 4));
    // An even lane keeps words 0 and 1 and sends 2 and 3; an odd one the other way round.
    const std::uint32_t kept0 = odd ? words[2] : words[0], kept1 = odd ? words[3] : words[1];
    const std::uint32_t sent0 = odd ? words[0] : words[2], sent1 = odd ? words[1] : words[3];
    const std::uint32_t got0 = __shfl_xor_sync(0xffffffffu, sent0, 1),
                        got1 = __shfl_xor_sync(0xffffffffu, sent1, 1);
    first_pair[0] = factor_of(odd ? got0 : kept0), first_pair[1] = factor_of(odd ? got1 : kept1);
    second_pair[0] = factor_of(odd ? kept0 : got0), second_pair[1] = factor_of(odd ? kept1 : got1);
  }

  // The factors of key j for queries i[0] to i[3], where the four lanes whose keys share a counter
  // are 4 apart and this is the one with key j % 4. Each draws for one of the queries; then they
  // swap, first with the neighbour, then with the one after.
  __device__ void column(const int (&i)[4], int j, T (&factors)[4]) const {
    const int own = j % 4;
    const int query = own == 0 ? i[0] : own == 1 ? i[1] : own == 2 ? i[2] : i[3];
    const std::int64_t index = first + static_cast<std::int64_t>(query) * p.keys + (j - own);
    const auto drawn = philox(static_cast<std::uint64_t>(index / 4));
    std::uint32_t w[4] = {drawn[0], drawn[1], drawn[2], drawn[3]};  // keys, of one query
    const auto swap = [&](std::uint32_t& low, std::uint32_t& high, int bit) {
      const bool upper = (own & bit) != 0;
      const std::uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? low : high, 4 * bit);
      (upper ? low : high) = got;
    };
    swap(w[0], w[1], 1), swap(w[2], w[3], 1);
    swap(w[0], w[2], 2), swap(w[1], w[3], 2);
#pragma unroll
    for (int k = 0; k < 4; ++k) factors[k] = factor_of(w[k]);  // queries, of one key
  }

  __device__ bool drops() const { return !plain && p.dropout > 0.0; }
  __device__ bool masks() const { return !plain && p.masked; }
};

// Pointers of one call.
template <class S>
struct ForwardArgs {
  const S *q, *k, *v;
  const void* mask;
  const cuda::Control* control;
  S* o;
  Compute<S>* logsumexp;
};

template <class S>
struct BackwardArgs {
  const S *q, *k, *v, *o;
  const Compute<S>* logsumexp;
  const S* grad;
  const void* mask;
  const cuda::Control* control;
  Compute<S>* delta;  // (B, H, T): o · do
  S *dq, *dk, *dv;
};

// Whether rows of a tensor are made of whole pieces of 16 bytes, aligned to as many.
template <class S>
bool whole_pieces(const S* data, const HeadSteps& steps, int size) {
  constexpr std::int64_t piece = 16 / static_cast<std::int64_t>(sizeof(S));
  return cuda::aligned_for_packs(data) && size % piece == 0 && steps.batch % piece == 0 &&
         steps.head % piece == 0 && steps.row % piece == 0;
}

// Plain arithmetic, for every dtype and size (attention_simt_cuda.cu); tensor cores, for half types
// and heads of up to 128 (attention_mma_cuda.cu).
template <class S>
void forward_simt(const KernelArgs& args, const CudaProblem& p, const ForwardArgs<S>& a);
template <class S>
void backward_simt(const KernelArgs& args, const CudaProblem& p, const BackwardArgs<S>& a);
template <class S>
void forward_mma(const KernelArgs& args, const CudaProblem& p, const ForwardArgs<S>& a);
template <class S>
void backward_mma(const KernelArgs& args, const CudaProblem& p, const BackwardArgs<S>& a);

}  // namespace ebb::attention
