#include "ops/quantised_adam/maps.h"

#include <algorithm>
#include <cmath>

namespace ebb {
namespace {

std::vector<double> midpoints(const std::vector<float>& map) {
  std::vector<double> result;
  for (std::size_t i = 0; i + 1 < map.size(); ++i)
    result.push_back(0.5 * (static_cast<double>(map[i]) + static_cast<double>(map[i + 1])));
  return result;
}

MomentMaps maps_of(std::vector<float> mean, std::vector<float> square) {
  MomentMaps maps{std::move(mean), std::move(square), {}, {}, 0};
  maps.mean_midpoints = midpoints(maps.mean);
  maps.square_midpoints = midpoints(maps.square);
  maps.zero = static_cast<std::uint8_t>(std::find(maps.mean.begin(), maps.mean.end(), 0.0f) -
                                        maps.mean.begin());
  return maps;
}

}  // namespace

std::vector<float> dynamic_map(bool is_signed, int exponent_bits, int total_bits) {
  std::vector<float> map{0.0f, 1.0f};
  for (int decade = 0; decade < exponent_bits; ++decade) {
    const double unit = std::pow(10.0, decade + 1 - exponent_bits);
    const int parts = 1 << (decade + total_bits - exponent_bits - (is_signed ? 1 : 0));
    for (int part = 0; part < parts; ++part) {
      const double middle = unit * (0.1 + 0.9 * (part + 0.5) / parts);
      map.push_back(static_cast<float>(middle));
      if (is_signed) map.push_back(static_cast<float>(-middle));
    }
  }
  std::sort(map.begin(), map.end());
  return map;
}

std::vector<float> linear_map(int values) {
  std::vector<float> map;
  for (int i = 1; i <= values; ++i)
    map.push_back(static_cast<float>(static_cast<double>(i) / values));
  return map;
}

const MomentMaps& MomentMaps::of(int bits) {
  static const MomentMaps eight = maps_of(dynamic_map(true, 7, 8), dynamic_map(false, 7, 8));
  static const MomentMaps four = maps_of(dynamic_map(true, 3, 4), linear_map(16));
  return bits == 8 ? eight : four;
}

}  // namespace ebb
