// The values of the codes of optimizer state, relative to the largest magnitude of a block:
// ascending lists, one value per code.
#pragma once

#include <cstdint>
#include <vector>

namespace ebb {

// The dynamic map of Dettmers et al. (2021). There are `exponent_bits` decades below 1. Each is cut
// into equal parts, the highest into the most and each lower one into half as many. The map
// consists of the middle of every part, zero and 1; a signed map also has their negatives, except
// -1.
std::vector<float> dynamic_map(bool is_signed, int exponent_bits, int total_bits);

// 1/n, 2/n, ..., 1: the linear map without zero of Li et al. (2023).
std::vector<float> linear_map(int values);

// The maps of both moments, and the midpoints between neighbouring values.
struct MomentMaps {
  std::vector<float> mean, square;
  std::vector<double> mean_midpoints, square_midpoints;
  std::uint8_t zero = 0;  // the code of a mean of zero

  static const MomentMaps& of(int bits);  // 8 or 4
};

}  // namespace ebb
