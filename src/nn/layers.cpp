#include "ebb/nn/layers.h"

#include <fmt/core.h>

#include "ebb/error.h"
#include "nn/fan_in.h"

namespace ebb::nn {
namespace {

// The channels that one of `groups` reads.
std::int64_t per_group(std::int64_t in, std::int64_t groups) {
  if (groups < 1 || in % groups != 0)
    throw ValueError(fmt::format("conv2d: {} channels do not divide into {} groups", in, groups));
  return in / groups;
}

}  // namespace

Conv2d::Conv2d(Place place, std::int64_t in, std::int64_t out, std::int64_t kernel,
               const Conv2dOptions& options, Bias with_bias)
    : Module(std::move(place)),
      weight(parameter("weight", {out, per_group(in, options.groups), kernel, kernel},
                       fan_in_uniform(per_group(in, options.groups) * kernel * kernel))),
      options_(options) {
  if (with_bias == Bias::yes)
    bias = parameter("bias", {out}, fan_in_uniform(in / options.groups * kernel * kernel));
}

BatchNorm2d::BatchNorm2d(Place place, std::int64_t channels, double eps, double momentum,
                         ImageLayout layout)
    : Module(std::move(place)),
      weight(parameter("weight", {channels}, Initial::constant(1.0))),
      bias(parameter("bias", {channels}, Initial::constant(0.0))),
      // Updates of running means are smaller than the last bit of half types.
      running_mean(buffer("running_mean", {{channels}, dtype() == f64 ? f64 : f32}, 0.0)),
      running_var(buffer("running_var", {{channels}, dtype() == f64 ? f64 : f32}, 1.0)),
      eps_(eps),
      momentum_(momentum),
      layout_(layout) {}

Tensor BatchNorm2d::forward(const Tensor& x) {
  const BatchNormResult result = batch_norm(
      x, weight, bias, ForwardScope::current(running_mean), ForwardScope::current(running_var),
      training() ? Training::yes : Training::no, momentum_, eps_, layout_);
  if (training()) {
    ForwardScope::record(running_mean, result.running_mean);
    ForwardScope::record(running_var, result.running_var);
  }
  return result.y;
}

LayerNorm::LayerNorm(Place place, std::int64_t size, double eps)
    : Module(std::move(place)),
      weight(parameter("weight", {size}, Initial::constant(1.0))),
      bias(parameter("bias", {size}, Initial::constant(0.0))),
      eps_(eps) {}

RMSNorm::RMSNorm(Place place, std::int64_t size, double eps)
    : Module(std::move(place)),
      weight(parameter("weight", {size}, Initial::constant(1.0))),
      eps_(eps) {}

Embedding::Embedding(Place place, std::int64_t count, std::int64_t size, const Initial& initial,
                     std::optional<std::int64_t> padding)
    : Module(std::move(place)),
      weight(parameter("weight", {count, size}, initial, Role::table)),
      padding_(padding) {}

Tensor Embedding::forward(const Tensor& ids) {
  const Tensor rows = embedding(weight, ids);
  if (!padding_) return rows;
  const Tensor number = full({}, static_cast<double>(*padding_), ids.dtype(), ids.device());
  return where(unsqueeze(equal(ids, number), -1), stop_gradient(rows), rows);
}

}  // namespace ebb::nn
