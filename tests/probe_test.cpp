// Measured rates of a device. They differ between machines, but only within limits.
#include "ebb/probe.h"

#include <gtest/gtest.h>

#include "ebb/rates.h"
#include "support/other_device.h"

namespace ebb::test {
namespace {

// Bounds that no machine comes near: a misread clock, or one around the wrong kernel, would be far
// outside.
void check_rates(const Rates& rates) {
  EXPECT_GT(rates.bandwidth, 1e7);
  EXPECT_LT(rates.bandwidth, 1e14);
  EXPECT_GT(rates.launch_us, 0.0);
  EXPECT_LT(rates.launch_us, 1e5);
  for (int k = 0; k < work_count; ++k) {
    const WorkRate& rate = rates[static_cast<Work>(k)];
    for (const double operations : {rate.f32, rate.bf16, rate.f16, rate.f64}) {
      EXPECT_GT(operations, 1e5) << name(static_cast<Work>(k));
      EXPECT_LT(operations, 1e17) << name(static_cast<Work>(k));
    }
  }
  // Elementwise functions cannot outrun products by much on any device.
  EXPECT_LT(rates[Work::elementwise].f32, 10.0 * rates[Work::product].f32);
}

TEST(Probe, RatesAreThoseOfAMachine) {
  check_rates(measure_rates(device::cpu));
  if (cuda_present()) check_rates(measure_rates(device::cuda(0)));
}

}  // namespace
}  // namespace ebb::test
