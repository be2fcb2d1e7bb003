#include <fmt/core.h>

#include <cmath>

#include "ebb/error.h"
#include "ebb/nn/layers.h"
#include "ebb/pairs.h"
#include "nn/fan_in.h"

namespace ebb::nn {

struct Linear::Adapter {
  LoraOptions options;
  Linear a, b;

  Adapter(Place place_a, Place place_b, const Linear& base, const LoraOptions& o)
      : options(o),
        a(std::move(place_a), base.in_, o.rank, Bias::no),
        b(std::move(place_b), o.rank, base.out_, Bias::no, Initial::constant(0.0)) {
    for (Linear* part : {&a, &b}) part->keep_plain(), part->freeze(false);
  }
  double scale() const { return options.alpha / static_cast<double>(options.rank); }
};

Linear::Linear(Place place, std::int64_t in, std::int64_t out, Bias with_bias)
    : Linear(std::move(place), in, out, with_bias, fan_in_uniform(in)) {}

Linear::Linear(Place place, std::int64_t in, std::int64_t out, Bias with_bias,
               const Initial& weight_initial, WeightLayout layout)
    : Module(std::move(place)),
      weight(parameter("weight", layout == WeightLayout::out_in ? Shape{out, in} : Shape{in, out},
                       weight_initial)),
      in_(in),
      out_(out),
      layout_(layout) {
  // With a custom initial weight, the bias starts at zero.
  const bool uniform = weight_initial.kind == Initial::Kind::uniform;
  if (with_bias == Bias::yes)
    bias = parameter("bias", {out}, uniform ? fan_in_uniform(in) : Initial::constant(0.0));
}

Tensor Linear::forward(const Tensor& x) {
  const Tensor y = packed_  ? quantised_linear(x, weight, packed_->encoding, bias)
                   : pairs_ ? pair_linear(x, weight, pairs_->positions, bias)
                            : linear(x, weight, bias, layout_);
  if (!adapter_) return y;
  const LoraOptions& options = adapter_->options;
  const Tensor inner = adapter_->a(training() ? dropout(x, options.dropout) : x);
  // The scale is applied to the tensor with the fewest elements.
  return y + adapter_->b(inner * adapter_->scale());
}

void Linear::require_packable() const {
  if (plain_)
    throw ValueError(
        fmt::format("the weight of \"{}\" is read directly and cannot be packed", path()));
  if (packed_)
    throw ValueError(
        fmt::format("the weight of \"{}\" is already in {}", path(), name(packed_->encoding.kind)));
  if (pairs_)
    throw ValueError(fmt::format(
        "the weight of \"{}\" is already stored without the zeros of its pattern 2:4", path()));
}

void Linear::pack_pairs() {
  require_packable();
  const NamedVariable made = pack("weight", PairWeight{layout_ == WeightLayout::in_out});
  weight = made.variable;
  pairs_ = made.pairs;
}

void Linear::pack_weight(LowBits kind) {
  require_packable();
  const PackedWeight how{Encoding::usual(kind, out_, in_), layout_ == WeightLayout::in_out};
  weight = pack("weight", how);
  packed_ = how;
}

void Linear::add_adapter(const LoraOptions& options) {
  if (plain_)
    throw ValueError(
        fmt::format("the weight of \"{}\" is read directly and takes no adapter", path()));
  if (adapter_) throw ValueError(fmt::format("\"{}\" already has an adapter", path()));
  if (options.rank < 1)
    throw ValueError(fmt::format("an adapter's rank must be at least 1, but is {}", options.rank));
  if (!std::isfinite(options.alpha))
    throw ValueError(fmt::format("an adapter's alpha must be finite, but is {}", options.alpha));
  if (!(options.dropout >= 0.0 && options.dropout < 1.0))
    throw ValueError(
        fmt::format("an adapter's dropout must be in [0, 1), but is {}", options.dropout));
  adapter_ = std::make_shared<Adapter>(at("lora_A"), at("lora_B"), *this, options);
}

const LoraOptions& Linear::adapter_options() const {
  if (!adapter_) throw ValueError(fmt::format("\"{}\" has no adapter", path()));
  return adapter_->options;
}

Tensor Linear::merged_weight() const {
  Tensor result = packed_  ? dequantise(weight, packed_->encoding, dtype())
                  : pairs_ ? spread_pairs(weight, pairs_->positions)
                           : Tensor(weight);
  if ((packed_ && packed_->transposed) || (pairs_ && pairs_->transposed))
    result = permute(result, {1, 0});
  if (!adapter_) return result;
  const auto wide = [](const Tensor& t) { return t.dtype() == f64 ? t : cast(t, f32); };
  const Tensor a = wide(adapter_->a.weight), b = wide(adapter_->b.weight);
  const Tensor added =
      layout_ == WeightLayout::out_in ? matmul(b, a) : matmul(a, b, Transpose::yes, Transpose::yes);
  return cast(wide(result) + added * adapter_->scale(), dtype());
}

}  // namespace ebb::nn
