#include "ops/attention/attention.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "ebb/ops.h"
#include "ops/attention/operands.h"
#include "ops/cuda_kernels.h"

namespace ebb {
namespace {

// Checks q, k, v and the optional mask, and returns the shape of the scores.
Shape check_inputs(const Call& call, const AttentionAttributes& a, int mask) {
  for (int i = 0; i < 3; ++i) {
    call.require_floating(i);
    call.require_rank(i, 4);
    call.require_same_dtype(Attention::q, i);
  }
  const Shape &q = call.shape(Attention::q), &k = call.shape(Attention::k),
              &v = call.shape(Attention::v);
  if (q[0] != k[0] || k[0] != v[0])
    call.fail_shape(fmt::format("batch sizes must agree, but are {}, {} and {}", q[0], k[0], v[0]));
  if (k[1] != v[1] || k[2] != v[2])
    call.fail_shape(
        fmt::format("keys and values must agree in heads and length, but are {} by {} and {} by {}",
                    k[1], k[2], v[1], v[2]));
  if (k[1] == 0 ? q[1] != 0 : q[1] % k[1] != 0)
    call.fail_shape(fmt::format(
        "the number of query heads must be a multiple of that of key heads, but they are {} and {}",
        q[1], k[1]));
  if (q[3] != k[3] || q[3] == 0)
    call.fail_shape(fmt::format(
        "queries and keys must have the same head size above 0, but have {} and {}", q[3], k[3]));
  if (!std::isfinite(a.scale))
    call.fail_value(fmt::format("the scale must be finite, but is {}", a.scale));
  if (!(a.dropout >= 0.0 && a.dropout < 1.0))
    call.fail_value(fmt::format("the dropout probability must be in [0, 1), but is {}", a.dropout));
  const Shape scores{q[0], q[1], q[2], k[2]};
  if (call.count() > mask) {
    const DType kind = call.dtype(mask);
    if (kind != b8 && kind != i32 && kind != call.dtype(Attention::q))
      call.fail_dtype(
          fmt::format("the mask must be bool, int32 (first keys) or, to be added, {}, but is {}",
                      name(call.dtype(Attention::q)), name(kind)));
    Shape both;
    if (!broadcast(call.shape(mask), scores, both) || both != scores)
      call.fail_shape(fmt::format("the mask must broadcast to {}", to_string(scores)));
    call.require_rank(mask, 4);
    const Shape& m = call.shape(mask);
    if (kind == i32 && (m[1] != 1 || m[2] != scores[2] || m[3] != 1))
      call.fail_shape(fmt::format("a mask of first keys must be ({} or 1, 1, {}, 1), but is {}",
                                  scores[0], scores[2], to_string(m)));
  }
  return scores;
}

DType logsumexp_dtype(DType dtype) { return dtype == f64 ? f64 : f32; }

std::vector<TensorType> infer(const Call& call, const AttentionAttributes& a) {
  const Shape scores = check_inputs(call, a, 3);
  return {
      {{scores[0], scores[2], scores[1], call.shape(Attention::v)[3]}, call.dtype(Attention::q)},
      {{scores[0], scores[1], scores[2]}, logsumexp_dtype(call.dtype(Attention::q))}};
}

std::vector<TensorType> infer_grad(const Call& call, const AttentionGradAttributes& a) {
  const Shape scores = check_inputs(call, a.attention, 6);
  const TensorType o{{scores[0], scores[1], scores[2], call.shape(AttentionGrad::v)[3]},
                     call.dtype(AttentionGrad::q)};
  const TensorType logsumexp{{scores[0], scores[1], scores[2]},
                             logsumexp_dtype(call.dtype(AttentionGrad::q))};
  if (call.inputs[AttentionGrad::o] != o || call.inputs[AttentionGrad::grad] != o)
    call.fail_shape(fmt::format("the result and its gradient must be {}", to_string(o)));
  if (call.inputs[AttentionGrad::logsumexp] != logsumexp)
    call.fail_shape(fmt::format("the logsumexp must be {}", to_string(logsumexp)));
  std::vector<TensorType> outputs;
  std::int64_t width = 0;  // of a token's gradients
  for (int i = 0; i < 3; ++i) {
    const Shape& s = call.shape(i);
    width += s[1] * s[3];
    outputs.push_back({{s[0], s[2], s[1], s[3]}, call.dtype(AttentionGrad::q)});
  }
  if (!a.packed) return outputs;
  if (scores[2] != scores[3])
    call.fail_shape(fmt::format("gradients are packed token by token, but {} queries have {} keys",
                                scores[2], scores[3]));
  return {{{scores[0], scores[2], width}, call.dtype(AttentionGrad::q)}};
}

// (B, H, T, D) as (B, T, H, D) and back, a view.
Tensor swapped(const Tensor& x) { return permute(x, {0, 2, 1, 3}); }

std::vector<Tensor> gradient(const GradientCall& call, const AttentionAttributes& a) {
  std::vector<Tensor> result(static_cast<std::size_t>(call.input_count()));
  if (!call.has_grad(Attention::o)) return result;
  std::vector<Tensor> inputs{call.input(Attention::q),          call.input(Attention::k),
                             call.input(Attention::v),          swapped(call.output(Attention::o)),
                             call.output(Attention::logsumexp), swapped(call.grad(Attention::o))};
  if (call.input_count() > Attention::mask) inputs.push_back(call.input(Attention::mask));
  const std::vector<Tensor> gradients =
      apply(attention_grad_op(), inputs, AttentionGradAttributes{a});
  std::transform(gradients.begin(), gradients.end(), result.begin(), swapped);
  return result;
}

// Any strides are accepted if each row is contiguous: (B, T, H, D) viewed as (B, H, T, D) needs no
// copy.
bool rows_contiguous(const Arg& arg) { return arg.strides[3] == 1 || arg.shape()[3] <= 1; }

bool accepts(const Arg& arg, int input, const AttentionAttributes&) {
  return input == 3 || rows_contiguous(arg);  // a mask is read element by element
}

bool grad_accepts(const Arg& arg, int input, const AttentionGradAttributes&) {
  if (input == 4) return arg.contiguous();
  return input == 6 || rows_contiguous(arg);
}

// The cost of a kernel per score: multiplications with D and Dv, and other work in units of a
// product's operations.
struct Effort {
  double over_size, over_value_size;
  double each_score;   // exponentials, maxima and sums
  double each_number;  // of a block of queries: loading, turning and storing it
};

// Kernels process queries in blocks; with a causal mask, a block visits all keys that its last
// query sees.
Cost cost_of(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
             const AttentionAttributes& a, const Effort& effort) {
  constexpr std::int64_t block = 32;
  const Shape &q = inputs[Attention::q].shape, &v = inputs[Attention::v].shape;
  const std::int64_t queries = q[2], keys = v[2];
  std::int64_t blocks = 0, scores = 0;
  for (std::int64_t first = 0; first < queries; first += block, ++blocks)
    scores += block * (a.causal ? std::min({keys, queries, first + block}) : keys);
  const double dropping = a.dropout > 0.0 ? 190.0 : 0.0;  // a random number for every score
  Cost cost = default_cost(inputs, outputs);
  cost.work = Work::attention;
  cost.flops =
      static_cast<double>(q[0] * q[1]) *
      (static_cast<double>(scores) * (2.0 * effort.over_size * static_cast<double>(q[3]) +
                                      2.0 * effort.over_value_size * static_cast<double>(v[3]) +
                                      effort.each_score + dropping) +
       static_cast<double>(blocks * block * (q[3] + v[3])) * effort.each_number);
  return cost;
}

Cost cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
          const AttentionAttributes& a) {
  return cost_of(inputs, outputs, a, {1, 1, 50, 80});
}

Cost grad_cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
               const AttentionGradAttributes& a) {
  // Products for scores, dq and dk; for the gradients of weights and dv.
  return cost_of(inputs, outputs, a.attention, {3, 2, 80, 200});
}

}  // namespace

const Op& attention_op() {
  static const TypedOp<AttentionAttributes> op({
      .name = "attention",
      .summary = "softmax(scale · q kᵀ + mask) v in tiles, and the logsumexp of its rows",
      .infer = infer,
      .gradient = gradient,
      .saved = {.inputs = {0, 1, 2, 3}, .outputs = {0, 1}},
      .reference = attention_reference,
      .accepts = accepts,
      .cpu = bind_attention_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_attention_cuda),
      .cost = cost,
      .narrowing = Narrowing::sought,
  });
  return op;
}

const Op& attention_grad_op() {
  static const TypedOp<AttentionGradAttributes> op({
      .name = "attention_grad",
      .summary = "gradients of attention in q, k and v, from tiles computed again",
      .infer = infer_grad,
      .reference = attention_grad_reference,
      .accepts = grad_accepts,
      .cpu = bind_attention_grad_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_attention_grad_cuda),
      .cost = grad_cost,
  });
  return op;
}

std::array<GradientPlace, 3> gradient_places(const KernelRequest& request, bool packed) {
  std::array<GradientPlace, 3> places;
  std::int64_t end = 0;
  for (int i = 0; i < 3; ++i) {
    const Shape& s = request.in(i).shape();
    const std::int64_t width = s[1] * s[3];
    places[static_cast<std::size_t>(i)] = {packed ? 0 : i, packed ? end : 0, width};
    end += width;
  }
  if (packed)
    for (GradientPlace& place : places) place.row = end;
  return places;
}

Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options) {
  AttentionAttributes a{.causal = options.causal, .dropout = options.dropout};
  if (options.scale)
    a.scale = *options.scale;
  else if (q && q.rank() == 4)
    a.scale = 1.0 / std::sqrt(static_cast<double>(std::max<std::int64_t>(q.shape()[3], 1)));
  if (a.dropout > 0.0) a.key = options.key ? *options.key : next_random_key();
  std::vector<Tensor> inputs{q, k, v};
  if (options.mask) {
    Shape shape = options.mask.shape();
    while (shape.rank() < 4) shape.insert(0, 1);
    inputs.push_back(shape == options.mask.shape() ? options.mask : reshape(options.mask, shape));
  }
  return swapped(apply(attention_op(), std::move(inputs), a).front());
}

}  // namespace ebb
