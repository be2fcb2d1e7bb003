#include "ops/quantised_adam/quantised_adam.h"

#include "ebb/ops.h"
#include "ops/cost.h"
#include "ops/cuda_kernels.h"
#include "ops/group/group.h"
#include "ops/optimizer_step.h"
#include "ops/quantised_adam/codec.h"
#include "ops/quantised_adam/maps.h"

namespace ebb {
namespace {

std::int64_t block_of(int bits) {
  return bits == 8 ? simd::EightBits::block : simd::FourBits::block;
}

std::vector<TensorType> infer(const Call& call, const QuantisedAdamAttributes& a) {
  call.require_floating(QuantisedAdamUpdate::parameter);
  check_adam(call, a.adam);
  if (a.bits != 8 && a.bits != 4)
    call.fail_value("moments have 8 or 4 bits; got bits=" + std::to_string(a.bits));
  if (a.adam.stochastic) call.fail_value("codes are rounded to the nearest, never stochastically");
  require_gradient(call);
  const QuantisedTypes types =
      quantised_types(call.shape(QuantisedAdamUpdate::parameter).elements(), a.bits);
  const struct {
    int input;
    const TensorType& type;
    std::string_view what;
  } state[] = {{QuantisedAdamUpdate::mean_codes, types.codes, "the codes of the mean"},
               {QuantisedAdamUpdate::mean_absmax, types.absmax, "the absmax of the mean"},
               {QuantisedAdamUpdate::square_codes, types.codes, "the codes of the mean square"},
               {QuantisedAdamUpdate::square_absmax, types.absmax, "the absmax of the mean square"}};
  for (const auto& [input, type, what] : state)
    if (call.inputs[static_cast<std::size_t>(input)] != type)
      call.fail_shape(std::string(what) + " must be " + to_string(type));
  require_scalar(call, QuantisedAdamUpdate::rate, f64, "the rate");
  require_scalar(call, QuantisedAdamUpdate::step, f64, "the step");
  require_scalar(call, QuantisedAdamUpdate::gradient_scale,
                 state_dtype(call.dtype(QuantisedAdamUpdate::parameter)), "the gradient scale");
  std::vector<TensorType> outputs{
      call.inputs[QuantisedAdamUpdate::parameter], call.inputs[QuantisedAdamUpdate::mean_codes],
      call.inputs[QuantisedAdamUpdate::mean_absmax], call.inputs[QuantisedAdamUpdate::square_codes],
      call.inputs[QuantisedAdamUpdate::square_absmax]};
  require_form(call, QuantisedAdamUpdate::companion, a.adam.form, outputs);
  return outputs;
}

// `x` (elements) in rows of blocks, padded with zeros.
Tensor in_blocks(const Tensor& x, std::int64_t block) {
  const std::int64_t elements = x.shape().elements(), rows = (elements + block - 1) / block;
  return reshape(pad(x, {0}, {rows * block - elements}), {rows, block});
}

Tensor decode(const QuantisedMoment& moment, const TensorType& type, int bits,
              const std::vector<float>& map) {
  const std::int64_t elements = type.shape.elements();
  Tensor codes = cast(moment.codes, i64);
  if (bits == 4) {
    const Tensor upper = cast(cast(codes, f64) / 16.0, i64);  // truncates
    codes = slice(reshape(stack({codes - upper * 16.0, upper}, 1), {-1}), 0, 0, elements);
  }
  const Tensor values = Tensor::from(map, {static_cast<std::int64_t>(map.size()), 1});
  const Tensor scaled =
      in_blocks(reshape(embedding(cast(values, type.dtype), codes), {elements}), block_of(bits)) *
      cast(unsqueeze(moment.absmax, 1), type.dtype);
  return reshape(slice(reshape(scaled, {-1}), 0, 0, elements), type.shape);
}

QuantisedMoment encode(const Tensor& moment, int bits, const std::vector<double>& midpoints) {
  const std::int64_t elements = moment.shape().elements();
  const Tensor blocks = in_blocks(reshape(moment, {elements}), block_of(bits));
  const Tensor absmax = cast(max(abs(blocks), {1}), f32);
  const Tensor divisor = cast(unsqueeze(absmax, 1), moment.dtype());
  const Tensor scaled =
      blocks / where(greater(divisor, zeros_like(divisor)), divisor, full_like(divisor, 1.0));
  const Tensor bounds =
      cast(Tensor::from(midpoints, {static_cast<std::int64_t>(midpoints.size())}), moment.dtype());
  const Tensor passed = cast(greater_equal(unsqueeze(scaled, 2), bounds), f64);
  Tensor codes = slice(reshape(sum(passed, {2}), {-1}), 0, 0, elements);
  if (bits == 4) {
    const Tensor pairs = in_blocks(codes, 2);
    codes = sum(pairs * Tensor::from(std::vector<double>{1.0, 16.0}, {2}), {1});
  }
  return {cast(codes, u8), absmax};
}

std::vector<Tensor> reference(std::span<const Tensor> in, const QuantisedAdamAttributes& a) {
  const TensorType type{in[QuantisedAdamUpdate::parameter].shape(),
                        state_dtype(in[QuantisedAdamUpdate::parameter].dtype())};
  const MomentMaps& maps = MomentMaps::of(a.bits);
  const AdamResult r = adam_in_primitives(
      opened(in, a.adam.form),
      cast(in[QuantisedAdamUpdate::gradient], type.dtype) * in[QuantisedAdamUpdate::gradient_scale],
      decode({in[QuantisedAdamUpdate::mean_codes], in[QuantisedAdamUpdate::mean_absmax]}, type,
             a.bits, maps.mean),
      decode({in[QuantisedAdamUpdate::square_codes], in[QuantisedAdamUpdate::square_absmax]}, type,
             a.bits, maps.square),
      in[QuantisedAdamUpdate::rate], in[QuantisedAdamUpdate::step], a.adam);
  const QuantisedMoment mean = encode(r.mean, a.bits, maps.mean_midpoints),
                        square = encode(r.square, a.bits, maps.square_midpoints);
  std::vector<Tensor> out{{}, mean.codes, mean.absmax, square.codes, square.absmax};
  close(r.parameter, in[QuantisedAdamUpdate::parameter].dtype(), a.adam.form, out);
  return out;
}

// Every call of a group draws with its own key.
std::optional<Attributes> in_common_quantised_adam(std::span<const Arg>,
                                                   const Attributes& attributes) {
  QuantisedAdamAttributes a = attributes.as<QuantisedAdamAttributes>();
  a.adam.key = a.adam.form.key = 0;
  return a;
}

}  // namespace

QuantisedTypes quantised_types(std::int64_t elements, int bits) {
  const std::int64_t block = block_of(bits);
  return {{{(elements * bits + 7) / 8}, u8}, {{(elements + block - 1) / block}, f32}};
}

int zero_code(int bits) {
  const int zero = MomentMaps::of(bits).zero;
  return bits == 8 ? zero : zero * 17;
}

const Op& quantised_adam_op() {
  static const TypedOp<QuantisedAdamAttributes> op({
      .name = "quantised_adam",
      .summary = "one step of Adam or AdamW on a parameter and its moments in 8 or 4 bits",
      .infer = infer,
      .reference = reference,
      .in_place = {{.output = QuantisedAdamUpdate::new_parameter,
                    .input = QuantisedAdamUpdate::parameter},
                   {.output = QuantisedAdamUpdate::new_mean_codes,
                    .input = QuantisedAdamUpdate::mean_codes},
                   {.output = QuantisedAdamUpdate::new_mean_absmax,
                    .input = QuantisedAdamUpdate::mean_absmax},
                   {.output = QuantisedAdamUpdate::new_square_codes,
                    .input = QuantisedAdamUpdate::square_codes},
                   {.output = QuantisedAdamUpdate::new_square_absmax,
                    .input = QuantisedAdamUpdate::square_absmax},
                   {.output = QuantisedAdamUpdate::new_companion,
                    .input = QuantisedAdamUpdate::companion}},
      .cpu = bind_quantised_adam_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_quantised_adam_cuda),
      .cost = cost_per_element<QuantisedAdamAttributes, 80>,
      .group = quantised_adam_group_op,
  });
  return op;
}

const GroupOp& quantised_adam_group_op() {
  static const GroupOp op({
      .name = "quantised_adam_group",
      .summary = "several small updates of quantised_adam at once",
      .member = quantised_adam_op,
      .in_common = in_common_quantised_adam,
      .cuda = EBB_CUDA_KERNEL(bind_quantised_adam_group_cuda),
  });
  return op;
}

QuantisedAdamResult quantised_adam_update(const Tensor& parameter, const Tensor& gradient,
                                          const QuantisedMoment& mean,
                                          const QuantisedMoment& square, const Tensor& rate,
                                          const Tensor& step, const Tensor& gradient_scale,
                                          const QuantisedAdamAttributes& attributes,
                                          const Tensor& companion) {
  std::vector<Tensor> inputs{parameter,     gradient, mean.codes, mean.absmax,   square.codes,
                             square.absmax, rate,     step,       gradient_scale};
  if (companion) inputs.push_back(companion);
  const auto out = apply(quantised_adam_op(), std::move(inputs), attributes);
  return {out[0], {out[1], out[2]}, {out[3], out[4]}, companion ? out[5] : Tensor{}};
}

}  // namespace ebb
