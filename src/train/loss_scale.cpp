#include "ebb/train/loss_scale.h"

#include <fmt/core.h>

#include <cmath>

#include "ebb/error.h"
#include "ebb/ops.h"

namespace ebb {

LossScaler::LossScaler(const LossScale& options, optim::StateStore& store, Device device)
    : options_(options) {
  if (!(std::isfinite(options.initial) && std::isfinite(options.growth) && options.initial > 0.0 &&
        options.growth > 1.0 && options.backoff > 0.0 && options.backoff < 1.0 &&
        options.interval > 0))
    throw ValueError(
        fmt::format("a loss scale starts above 0, grows by more than 1, backs off by less than 1 "
                    "and waits at least a step, but initial = {}, growth = {}, backoff = {}, "
                    "interval = {}",
                    options.initial, options.growth, options.backoff, options.interval));
  scale_ = store.get("loss_scale.scale", {{}, f32}, device, options.initial);
  unchanged_ = store.get("loss_scale.steps_unchanged", {{}, f64}, device);
  taken_ = store.get("loss_scale.steps_taken", {{}, f64}, device);
  skipped_ = store.get("loss_scale.steps_skipped", {{}, f64}, device);
}

Tensor LossScaler::scaled(const Tensor& loss) const { return cast(loss, f32) * scale_; }

LossScaler::Decision LossScaler::decide(const Tensor& norm) const {
  const Tensor none = scalar_like(norm, 0.0);
  const Tensor finite = equal(norm - norm, none);  // x - x is NaN for infinities and NaN
  const Tensor next = taken_ + 1.0, waited = unchanged_ + 1.0, never = scalar_like(waited, 0.0);
  const Tensor grows = logical_and(
      finite, equal(waited, scalar_like(waited, static_cast<double>(options_.interval))));
  Decision d;
  d.taken = finite;
  d.scale = scale_;
  d.norm = norm / scale_;
  d.gradient_scale = where(finite, reciprocal(scale_), none);
  d.step = next;
  d.updates = {
      {scale_,
       where(finite, where(grows, scale_ * options_.growth, scale_), scale_ * options_.backoff)},
      {unchanged_, where(logical_and(finite, logical_not(grows)), waited, never)},
      {taken_, where(finite, next, taken_)},
      {skipped_, where(finite, skipped_, skipped_ + 1.0)},
  };
  return d;
}

}  // namespace ebb
