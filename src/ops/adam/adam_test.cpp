#include "ops/adam/adam.h"

#include <gtest/gtest.h>

#include "support/op_check.h"

namespace ebb::test {
namespace {

Sample step(const char* name, AdamAttributes attributes) {
  return {name,
          {SampleInput::real({3, 4}), SampleInput::real({3, 4}), SampleInput::real({3, 4}),
           SampleInput::real({3, 4}, 0.5, 2.0)},
          [attributes](const auto& x) {
            const DType state = x[0].dtype() == f64 ? f64 : f32;
            const AdamResult r =
                adam_update(x[0], x[1], cast(x[2], state), cast(x[3], state), full({}, 0.05, f64),
                            full({}, 3.0, f64), full({}, 0.5, state), attributes);
            return std::vector{r.parameter, r.mean, r.square};
          }};
}

TEST(Adam, StepsAndTheirDerivatives) {
  check(step("adamw",
             {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3, .weight_decay = 0.1, .decoupled = true}));
  check(step("adam with decay",
             {.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.1, .decoupled = false}));
}

TEST(Adam, UpdatesVariablesInPlace) {
  const Variable p(ones({1000})), m(zeros({1000}), Category::optimizer),
      v(zeros({1000}), Category::optimizer);
  const AdamResult r = adam_update(p, full({1000}, 2.0), m, v, full({}, 0.1, f64),
                                   full({}, 1.0, f64), full({}, 1.0, f32), {});
  Program program(
      {.inputs = {}, .outputs = {}, .updates = {{p, r.parameter}, {m, r.mean}, {v, r.square}}});
  program.run();
  EXPECT_NEAR(p.to_vector<float>()[999], 0.9f, 1e-6f);  // the first step has the size of the rate
  // The gradient and three scalars; no copy of the parameter or the moments.
  EXPECT_LT(program.plan().live_peak, 2 * p.type().bytes());
}

TEST(Adam, Errors) {
  const Tensor p = zeros({2}), s = zeros({}, f64), one = ones({});
  expect_error([&] { adam_update(p, zeros({3}), p, p, s, s, one, {}); },
               {"[adam]", "gradient", "(2,)", "(3,)"});
  expect_error([&] { adam_update(p, p, p, p, one, s, one, {}); }, {"[adam]", "rate", "float64"});
  expect_error([&] { adam_update(p, p, p, p, s, s, one, {.beta1 = 1.0}); }, {"[adam]", "beta1=1"});
}

}  // namespace
}  // namespace ebb::test
