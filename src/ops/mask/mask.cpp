#include "ops/mask/mask.h"

#include <fmt/core.h>

#include <charconv>
#include <functional>
#include <numeric>

#include "ebb/error.h"
#include "ebb/ops.h"
#include "ops/cuda_kernels.h"

namespace ebb {
namespace {

using Kind = ChooseMaskAttributes::Kind;

void require_mask(const Call& call, int input, std::int64_t weights) {
  if (call.inputs[static_cast<std::size_t>(input)] != mask_type(weights))
    call.fail_shape(
        fmt::format("a mask of {} weights must be {}", weights, to_string(mask_type(weights))));
}

std::vector<TensorType> infer_masked(const Call& call, const MaskedAttributes& a) {
  const std::int64_t elements = call.shape(0).elements();
  if (a.weights < 0 || (a.weights == 0 ? elements != 0 : elements % a.weights != 0))
    call.fail_value(fmt::format("{} elements are not the same number for each of {} weights",
                                elements, a.weights));
  require_mask(call, 1, a.weights);
  return {call.inputs[0]};
}

std::vector<Tensor> masked_gradient(const GradientCall& call, const MaskedAttributes& a) {
  return {apply1(masked_op(), {call.grad(), call.input(1)}, a), {}};
}

// (weights), in the dtype of x: a table of the bits of each byte.
std::vector<Tensor> masked_reference(std::span<const Tensor> in, const MaskedAttributes& a) {
  const Tensor& x = in[0];
  if (a.weights == 0) return {x};
  std::vector<double> table;
  for (int byte = 0; byte < 256; ++byte)
    for (int bit = 0; bit < 8; ++bit) table.push_back(byte >> bit & 1);
  const std::int64_t bytes = in[1].shape()[0], each = x.shape().elements() / a.weights;
  const Tensor bits =
      reshape(embedding(Tensor::from(table, {256, 8}), cast(in[1], i64)), {bytes * 8});
  const Tensor live =
      reshape(expand(unsqueeze(slice(bits, 0, 0, a.weights), 1), {a.weights, each}), x.shape());
  return {where(greater(live, zeros_like(live)), x, zeros_like(x))};
}

std::vector<TensorType> infer_choose(const Call& call, const ChooseMaskAttributes& a) {
  const bool grows = a.kind == Kind::regrow;
  if (call.count() != (grows ? 4 : 3))
    call.fail_value(fmt::format("takes {} inputs, but {} came", grows ? 4 : 3, call.count()));
  call.require_floating(0);
  require_mask(call, 1, call.shape(0).elements());
  if (call.inputs[2] != TensorType{{}, f64}) call.fail_shape("the share must be a float64 scalar");
  if (grows) {
    if (call.shape(3) != call.shape(0)) call.fail_shape("gradients must have the weights' shape");
    const DType own = call.dtype(3);
    if (own != call.dtype(0) && !(call.dtype(0) == f32 && is_half(own)))
      call.fail_dtype("gradients have the weights' dtype, or a half type beside float32 weights");
  }
  if (a.of == 0) return {call.inputs[1]};
  if (grows) call.fail_value("masks regrow among all weights, not in runs");
  const int axis = call.axis(a.axis, call.shape(0).rank());
  const std::int64_t size = call.shape(0)[axis];
  if (a.of < 2 || a.of > 64 || size % a.of != 0)
    call.fail_value(
        fmt::format("axis {} has {} elements, which do not divide into runs of {} (from 2 to 64)",
                    axis, size, a.of));
  return {call.inputs[1]};
}

}  // namespace

RunGeometry runs_of(const Shape& shape, const ChooseMaskAttributes& a) {
  return {a.of, std::accumulate(shape.begin() + a.axis + 1, shape.end(), std::int64_t{1},
                                std::multiplies<>())};
}

const Op& masked_op() {
  static const TypedOp<MaskedAttributes> op({
      .name = "masked",
      .summary = "zero where a mask of one bit a weight says so",
      .infer = infer_masked,
      .gradient = masked_gradient,
      .saved = {.inputs = {1}, .outputs = {}},
      .reference = masked_reference,
      .in_place = {{.output = 0, .input = 0}},
      .cpu = bind_masked_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_masked_cuda),
  });
  return op;
}

const Op& choose_mask_op() {
  static const TypedOp<ChooseMaskAttributes> op({
      .name = "choose_mask",
      .summary = "a mask of one bit a weight with fewer or other live weights",
      .infer = infer_choose,
      .gradient = zero_gradient<ChooseMaskAttributes>,
      .in_place = {{.output = 0, .input = 1}},
      .cpu = bind_choose_mask_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_choose_mask_cuda),
  });
  return op;
}

Pattern pattern_named(std::string_view text) {
  Pattern p;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, p.kept);
  if (first.ec == std::errc() && first.ptr < end && *first.ptr == ':') {
    const auto second = std::from_chars(first.ptr + 1, end, p.of);
    if (second.ec == std::errc() && second.ptr == end && 0 < p.kept && p.kept < p.of && p.of <= 64)
      return p;
  }
  throw ValueError(fmt::format(
      "a pattern is N:M, which keeps N of every M weights, with 0 < N < M ≤ 64, but {} came",
      text));
}

TensorType mask_type(std::int64_t weights) { return {{(weights + 7) / 8}, u8}; }

Tensor masked(const Tensor& x, const Tensor& mask, std::int64_t weights) {
  return apply1(masked_op(), {x, mask},
                MaskedAttributes{weights == 0 ? x.shape().elements() : weights});
}

Tensor shrunk_mask(const Tensor& scores, const Tensor& mask, const Tensor& share, MaskScore score,
                   const MaskRuns& runs) {
  ChooseMaskAttributes a{.kind = score == MaskScore::magnitude ? Kind::magnitude : Kind::value,
                         .of = runs.of,
                         .axis = runs.axis};
  if (runs.of != 0) a.axis = wrap_axis(choose_mask_op(), scores, runs.axis);
  return apply1(choose_mask_op(), {scores, mask, share}, a);
}

Tensor regrown_mask(const Tensor& weights, const Tensor& mask, const Tensor& share,
                    const Tensor& gradients) {
  return apply1(choose_mask_op(), {weights, mask, share, gradients},
                ChooseMaskAttributes{.kind = Kind::regrow});
}

}  // namespace ebb
