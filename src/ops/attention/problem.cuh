// The arguments of attention kernels, and elementwise parts that forward and backward share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/attention/attention.h"
#include "ops/attention/dropout.h"
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
  bool causal, drops, masked = false, boolean_mask = false, first_keys = false;
  bool tf32;  // float32 may be multiplied as TF32
  double scale;
  DropoutMask dropout;
  RandomKey key;
  std::int64_t mask_stride[4] = {};  // 0 along axes of size 1

  CudaProblem(const KernelRequest& request, const AttentionAttributes& a, int mask_input)
      : q(request.in(0)),
        k(request.in(1)),
        v(request.in(2)),
        causal(a.causal),
        drops(a.dropout > 0.0),
        tf32(request.target.tf32),
        scale(a.scale),
        dropout(a.dropout, request.in(0).shape()[2], request.in(1).shape()[2]),
        key(a.key) {
    const Shape &qs = request.in(0).shape(), &vs = request.in(2).shape();
    batches = static_cast<int>(qs[0]), heads = static_cast<int>(qs[1]);
    kv_heads = static_cast<int>(vs[1]), queries = static_cast<int>(qs[2]);
    keys = static_cast<int>(vs[2]), size = static_cast<int>(qs[3]);
    value_size = static_cast<int>(vs[3]);
    if (static_cast<int>(request.inputs.size()) <= mask_input) return;
    const Arg& arg = request.in(mask_input);
    masked = true, boolean_mask = arg.dtype() == b8, first_keys = arg.dtype() == i32;
    for (int i = 0; i < 4; ++i) mask_stride[i] = arg.shape()[i] == 1 ? 0 : arg.strides[i];
  }

  // Numbers of tokens in tensors that lie token by token.
  __device__ std::int64_t query_token(int b, int i) const {
    return static_cast<std::int64_t>(b) * queries + i;
  }
  __device__ std::int64_t key_token(int b, int j) const {
    return static_cast<std::int64_t>(b) * keys + j;
  }

  bool plain() const { return !masked && !drops; }
  // The bounds of first keys (first_keys.cuh): tiles of 64 queries, of batches of the mask.
  std::int64_t mask_batches() const { return mask_stride[0] == 0 ? 1 : batches; }
  std::int64_t bound_tiles() const { return (queries + 63) / 64; }
  Bytes bounds_bytes() const {
    return {first_keys ? mask_batches() * bound_tiles() * static_cast<std::int64_t>(sizeof(int2))
                       : 0};
  }
  __host__ __device__ int group() const { return kv_heads > 0 ? heads / kv_heads : 0; }
  // Keys that some query before `end` sees, and the first query that sees some key from `begin` on.
  __device__ int visible_keys(int end) const { return causal && end < keys ? end : keys; }
  __device__ int first_query(int begin) const { return causal ? begin : 0; }
};

// Which scores of a group are kept, a bit each.
__device__ inline std::uint32_t draw_group(const DropoutMask& mask, const Philox& philox,
                                           std::uint64_t group) {
  std::uint32_t kept = ~0u;
#pragma unroll
  for (int c = 0; c < DropoutMask::counters; ++c) {
    const auto words = philox.by_rounds<DropoutMask::rounds>(group * DropoutMask::counters +
                                                             static_cast<std::uint64_t>(c));
#pragma unroll
    for (int w = 0; w < 4; ++w) kept = mask.compared(kept, words[w], 4 * c + w);
  }
  return kept;
}

// Operations on one score, at (i, j) of head h of batch b. Plain: without mask and dropout.
template <class S, bool plain = false>
struct ScoreRules {
  using T = Compute<S>;
  const CudaProblem& p;
  const void* mask;     // of head h
  std::uint64_t first;  // group of the head, for dropout
  Philox philox;
  T keep;  // dropout's scale factor

  __device__ ScoreRules(const CudaProblem& problem, const void* mask_data, RandomState random,
                        int b, int h)
      : p(problem),
        mask(nullptr),
        first(p.dropout.first_group(static_cast<std::uint64_t>(b) * p.heads + h)),
        philox(random, p.key),
        keep(static_cast<T>(p.dropout.keep)) {
    const std::int64_t at = b * p.mask_stride[0] + h * p.mask_stride[1];
    if (plain || !p.masked) return;
    if (p.boolean_mask)
      mask = static_cast<const std::uint8_t*>(mask_data) + at;
    else if (p.first_keys)
      mask = static_cast<const std::int32_t*>(mask_data) + at;
    else
      mask = static_cast<const S*>(mask_data) + at;
  }

  // A scaled score, or -inf where query i does not see key j.
  __device__ T masked(T score, int i, int j) const {
    if (i >= p.queries || j >= p.keys || (p.causal && j > i)) return -cuda::infinity<T>();
    if (plain || !p.masked) return score;
    if (p.first_keys)
      return j >= static_cast<const std::int32_t*>(mask)[i * p.mask_stride[2]]
                 ? score
                 : -cuda::infinity<T>();
    const std::int64_t at = i * p.mask_stride[2] + j * p.mask_stride[3];
    if (p.boolean_mask)
      return static_cast<const std::uint8_t*>(mask)[at] ? score : -cuda::infinity<T>();
    return score + cuda::widen(static_cast<const S*>(mask)[at]);
  }

  // Whether the mask depends only on the key (a padding mask); and its value.
  __device__ bool by_key() const { return masks() && p.boolean_mask && p.mask_stride[2] == 0; }
  __device__ bool shows(int j) const {
    return j < p.keys && static_cast<const std::uint8_t*>(mask)[j * p.mask_stride[3]] != 0;
  }

  // Which scores of the group of (i, j) dropout keeps.
  __device__ std::uint32_t kept(int i, int j) const {
    return draw_group(
        p.dropout, philox,
        first + p.dropout.group(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(j)));
  }

  __device__ bool drops() const { return !plain && p.drops; }
  __device__ bool masks() const { return !plain && p.masked; }
  // Whether scores must be masked everywhere: first keys matter only where FirstKeys says so.
  __device__ bool masks_all() const { return masks() && !p.first_keys; }
};

// A result that lies token by token, with all heads of a token side by side.
template <class S>
struct TokenRows {
  S* data;
  std::int64_t row;  // elements from one token to the next

  __device__ S* at(std::int64_t token, int h, int size) const {
    return data + token * row + h * size;
  }
};

// Pointers of one call.
template <class S>
struct ForwardArgs {
  const S *q, *k, *v;
  const void* mask;
  const int2* bounds;  // workspace; see first_keys.cuh
  const cuda::Control* control;
  TokenRows<S> o;
  Compute<S>* logsumexp;
};

template <class S>
struct BackwardArgs {
  const S *q, *k, *v, *o;
  const Compute<S>* logsumexp;
  const S* grad;
  const void* mask;
  const int2* bounds;
  const cuda::Control* control;
  Compute<S>* delta;  // workspace; (B, H, T): o · do
  TokenRows<S> dq, dk, dv;
};

// Whether rows of a tensor are made of whole pieces of 16 bytes, aligned to as many.
template <class S>
bool whole_pieces(const S* data, const HeadSteps& steps, int size) {
  constexpr std::int64_t piece = 16 / static_cast<std::int64_t>(sizeof(S));
  return cuda::aligned_for_packs(data) && size % piece == 0 && steps.batch % piece == 0 &&
         steps.head % piece == 0 && steps.row % piece == 0;
}

// Plain arithmetic, for every dtype and size (attention_simt.cuh); tensor cores, for half types and
// float32 and heads of up to `padded` (attention_mma.cuh, attention_grad_mma.cuh).
template <class S>
void forward_simt(const KernelArgs& args, const CudaProblem& p, const ForwardArgs<S>& a);
template <class S>
void backward_simt(const KernelArgs& args, const CudaProblem& p, const BackwardArgs<S>& a);
template <class S, int padded>
void forward_mma(const KernelArgs& args, const CudaProblem& p, const ForwardArgs<S>& a);
template <class S, int padded>
void backward_mma(const KernelArgs& args, const CudaProblem& p, const BackwardArgs<S>& a);

// The same for compute capability 9.0 (attention_wgmma_cuda.cu, attention_grad_wgmma_cuda.cu),
// where heads are of up to 128 and rows of whole pieces. Returns false, without doing anything, if
// the problem or the device does not qualify.
template <class S>
bool forward_wgmma(const KernelArgs& args, const CudaProblem& p, const ForwardArgs<S>& a);
template <class S>
bool backward_wgmma(const KernelArgs& args, const CudaProblem& p, const BackwardArgs<S>& a);

}  // namespace ebb::attention
