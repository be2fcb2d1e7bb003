#include "ebb/models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ebb/ops.h"

namespace ebb::models {
namespace {

// The pair, as a fraction, that makes `turns` turns within `context` positions.
double pair_with(double turns, double base, std::int64_t size, std::int64_t context) {
  return static_cast<double>(size) *
         std::log(static_cast<double>(context) / (turns * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(base));
}

// All in float64 on (pairs).
Tensor llama3_speeds(const Rope& r, const Tensor& speed) {
  const double context = static_cast<double>(r.original_context);
  const Tensor slow = speed / r.factor;
  const Tensor length = 2.0 * std::numbers::pi / speed;  // of one turn, in positions
  const Tensor kept = (context / length - r.low) / (r.high - r.low);
  const Tensor mixed = (1.0 - kept) * slow + kept * speed;
  const auto limit = [&](double value) { return full({}, value, f64, speed.device()); };
  return where(less(length, limit(context / r.high)), speed,
               where(greater(length, limit(context / r.low)), slow, mixed));
}

// Speeds change gradually from pair `low` on and completely from pair `high` on.
Tensor yarn_speeds(const Rope& r, const Tensor& speed, double base, std::int64_t size) {
  double low = pair_with(r.fast, base, size, r.original_context),
         high = pair_with(r.slow, base, size, r.original_context);
  if (r.whole_pairs) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(size - 1));
  if (low == high) high += 0.001;
  const auto limit = [&](double value) { return full({}, value, f64, speed.device()); };
  const Tensor changed =
      minimum(maximum((arange(size / 2, f64, speed.device()) - low) / (high - low), limit(0.0)),
              limit(1.0));
  return speed / r.factor * changed + speed * (1.0 - changed);
}

}  // namespace

Tensor rope_speeds(const Rope& rope, double base, std::int64_t size, Device device) {
  const Tensor speed =
      exp(arange(size / 2, f64, device) *
          (-2.0 * std::log(base) / static_cast<double>(std::max<std::int64_t>(size, 1))));
  switch (rope.scaling) {
    case RopeScaling::none:
    case RopeScaling::dynamic:
      break;
    case RopeScaling::linear:
      return speed / rope.factor;
    case RopeScaling::llama3:
      return llama3_speeds(rope, speed);
    case RopeScaling::yarn:
      return yarn_speeds(rope, speed, base, size);
  }
  return speed;
}

Turns make_turns(const Tensor& speeds, double magnitude, std::int64_t length,
                 const Tensor& positions, DType dtype) {
  // In float64, as the op `rotary` has them: large angles have few fractional bits in float32.
  const Tensor place = positions
                           ? reshape(cast(positions, f64), {positions.shape()[0], 1, length, 1})
                           : unsqueeze(arange(length, f64, speeds.device()), -1);
  const Tensor angle = place * speeds;
  const auto table = [&](const Tensor& values) {
    return cast(magnitude == 1.0 ? values : values * magnitude, dtype == f64 ? f64 : f32);
  };
  return {table(cos(angle)), table(sin(angle))};
}

Tensor turned(const Tensor& x, const Turns& turns) {
  const std::int64_t size = x.shape().back(), pairs = turns.cosine.shape().back();
  const Tensor wide = cast(x, turns.cosine.dtype());
  const Tensor a = slice(wide, -1, 0, pairs), b = slice(wide, -1, pairs, 2 * pairs);
  std::vector<Tensor> parts{a * turns.cosine - b * turns.sine, b * turns.cosine + a * turns.sine};
  if (2 * pairs < size) parts.push_back(slice(wide, -1, 2 * pairs, size));
  return cast(concat(parts, -1), x.dtype());
}

}  // namespace ebb::models
