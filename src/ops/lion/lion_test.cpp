#include "ops/lion/lion.h"

#include <gtest/gtest.h>

#include "support/op_check.h"

namespace ebb::test {
namespace {

Sample step(const char* name, LionAttributes attributes, DType kept = f32) {
  return {name,
          // Signs of the mean that no shift of the differences changes.
          {SampleInput::real({3, 7}), SampleInput::real({3, 7}, 0.1, 1.0),
           SampleInput::real({3, 7}, 0.1, 1.0)},
          [=](const auto& x) {
            const DType state = x[0].dtype() == f64 ? f64 : f32;
            const LionResult r = lion_update(x[0], -x[1], cast(-x[2], kept == bf16 ? bf16 : state),
                                             full({}, 0.05, f64), full({}, 0.5, state), attributes);
            return std::vector{r.parameter, r.mean};
          }};
}

TEST(Lion, StepsAndTheirDerivatives) {
  check(step("plain", {}));
  check(step("decay", {.beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1}));
}

TEST(Lion, KeepsItsMeanInBfloat16) {
  Sample sample = step("bfloat16 mean", {.weight_decay = 0.1}, bf16);
  for (SampleInput& input : sample.inputs) input.differentiable = false;  // rounding has steps
  // Another precision of the parameter may round a mean to the neighbouring bfloat16.
  sample.low_precision = false;
  check(sample);
}

TEST(Lion, StandsStillWithoutADirection) {
  const LionResult r = lion_update(ones({3}), zeros({3}), zeros({3}), full({}, 0.5, f64), ones({}),
                                   {.weight_decay = 0.0});
  EXPECT_EQ(r.parameter.to_vector<float>(), std::vector<float>(3, 1.0f));
}

TEST(Lion, Errors) {
  const Tensor p = zeros({2}), s = zeros({}, f64), one = ones({});
  expect_error([&] { lion_update(p, p, zeros({2}, f16), s, one, {}); },
               {"[lion]", "the mean", "float32 (2,)"});
  expect_error([&] { lion_update(p, p, p, s, one, {.beta2 = 1.0}); }, {"[lion]", "beta2=1"});
}

}  // namespace
}  // namespace ebb::test
