#include "ebb/rates.h"

#include <algorithm>

namespace ebb {

// A kernel computes or waits for memory, whichever takes longer.
double Rates::predict_ms(const Cost& cost, DType dtype) const {
  const WorkRate& rate = (*this)[cost.work];
  const Bytes width = size_of(dtype);
  const double operations = width == 8_B ? rate.f64 : width == 2_B ? rate.half : rate.f32;
  const double seconds =
      std::max(cost.flops / operations, static_cast<double>(cost.moved.count) / bandwidth);
  return 1e3 * seconds + 1e-3 * launch_us;
}

}  // namespace ebb
