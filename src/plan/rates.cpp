#include "ebb/rates.h"

#include <algorithm>

namespace ebb {

double Rates::seconds_to_move(Bytes bytes) const {
  const Bytes cached = std::min(bytes, cache), far = bytes - cached;
  double seconds = static_cast<double>(far.count) / bandwidth;
  if (cached.count > 0) seconds += static_cast<double>(cached.count) / cache_bandwidth;
  return seconds;
}

double Rates::predict_ms(const Cost& cost, DType dtype) const {
  const WorkRate& rate = (*this)[cost.work];
  const Bytes width = size_of(dtype);
  const double operations = width == 8_B ? rate.f64 : width == 2_B ? rate.half : rate.f32;
  const double computing = cost.flops / operations, moving = seconds_to_move(cost.moved);
  return 1e3 * (overlaps ? std::max(computing, moving) : computing + moving) + 1e-3 * launch_us;
}

}  // namespace ebb
