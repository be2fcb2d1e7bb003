#include "ops/sgd/sgd.h"

#include <gtest/gtest.h>

#include "support/op_check.h"

namespace ebb::test {
namespace {

Sample step(const char* name, SgdAttributes attributes) {
  return {name,
          {SampleInput::real({3, 4}), SampleInput::real({3, 4}), SampleInput::real({3, 4})},
          [attributes](const auto& x) {
            const DType state = x[0].dtype() == f64 ? f64 : f32;
            const SgdResult r =
                sgd_update(x[0], x[1], attributes.momentum > 0 ? cast(x[2], state) : Tensor{},
                           full({}, 0.05, f64), full({}, 0.5, state), attributes);
            return r.velocity ? std::vector{r.parameter, r.velocity} : std::vector{r.parameter};
          }};
}

TEST(Sgd, StepsAndTheirDerivatives) {
  check(step("plain", {}));
  check(step("decay", {.weight_decay = 0.1}));
  check(step("momentum", {.momentum = 0.9, .weight_decay = 0.01}));
  check(step("clipped", {.weight_decay = 0.1, .clip_value = 0.3}));
  check(step("nesterov", {.momentum = 0.9, .weight_decay = 0.01, .nesterov = true}));
}

TEST(Sgd, Errors) {
  const Tensor p = zeros({2}), s = zeros({}, f64), one = ones({});
  expect_error([&] { sgd_update(p, zeros({3}), {}, s, one, {}); }, {"[sgd]", "gradient"});
  expect_error([&] { sgd_update(p, p, {}, s, one, {.momentum = 0.9}); }, {"[sgd]", "velocity"});
  expect_error([&] { sgd_update(p, p, {}, s, one, {.nesterov = true}); }, {"[sgd]", "Nesterov"});
  expect_error([&] { sgd_update(p, p, {}, s, one, {.clip_value = 0.0}); },
               {"[sgd]", "clip_value=0"});
}

}  // namespace
}  // namespace ebb::test
