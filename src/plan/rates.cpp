#include "ebb/rates.h"

#include <algorithm>

namespace ebb {

double Rates::seconds_to_move(Bytes bytes) const {
  const Bytes cached = std::min(bytes, cache), far = bytes - cached;
  double seconds = static_cast<double>(far.count) / bandwidth;
  if (cached.count > 0) seconds += static_cast<double>(cached.count) / cache_bandwidth;
  return seconds;
}

namespace {

double of(const WorkRate& rate, DType dtype) {
  if (dtype == bf16) return rate.bf16;
  if (dtype == f16) return rate.f16;
  return size_of(dtype) == 8_B ? rate.f64 : rate.f32;
}

}  // namespace

double Rates::transfer_ms(Tier tier, Bytes bytes, bool fetch) const {
  const Link& link = links[tier];
  return launch_us * 1e-3 +
         1e3 * static_cast<double>(bytes.count) / (fetch ? link.fetch : link.store);
}

double Rates::exchange_ms(Bytes sent, std::int64_t exchanges) const {
  return 1e-3 * ranks.latency_us * static_cast<double>(exchanges) +
         1e3 * static_cast<double>(sent.count) / ranks.bandwidth;
}

double Rates::predict_ms(const Cost& cost, DType dtype) const {
  const double computing = cost.flops / of((*this)[cost.work], dtype),
               moving = seconds_to_move(cost.moved);
  return 1e3 * (overlaps ? std::max(computing, moving) : computing + moving) + 1e-3 * launch_us;
}

double Rates::factor(std::string_view op) const {
  const auto found = factors.find(op);
  return found == factors.end() ? 1.0 : found->second;
}

}  // namespace ebb
