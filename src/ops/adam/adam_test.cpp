#include "ops/adam/adam.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/op_check.h"

namespace ebb::test {
namespace {

Sample step(const char* name, AdamAttributes attributes, DType kept = f32) {
  return {name,
          {SampleInput::real({3, 4}), SampleInput::real({3, 4}), SampleInput::real({3, 4}),
           SampleInput::real({3, 4}, 0.5, 2.0)},
          [=](const auto& x) {
            const DType compute = x[0].dtype() == f64 ? f64 : f32,
                        state = kept == bf16 ? bf16 : compute;
            const AdamResult r =
                adam_update(x[0], x[1], cast(x[2], state), cast(x[3], state), full({}, 0.05, f64),
                            full({}, 3.0, f64), full({}, 0.5, compute), attributes);
            return std::vector{r.parameter, r.mean, r.square};
          }};
}

TEST(Adam, StepsAndTheirDerivatives) {
  check(step("adamw",
             {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3, .weight_decay = 0.1, .decoupled = true}));
  check(step("adam with decay",
             {.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.1, .decoupled = false}));
}

TEST(Adam, KeepsMomentsInBfloat16) {
  Sample sample = step("bfloat16 moments", {.beta2 = 0.99, .eps = 1e-3}, bf16);
  for (SampleInput& input : sample.inputs) input.differentiable = false;  // rounding has steps
  // Another precision of the parameter may round a moment to the neighbouring bfloat16.
  sample.low_precision = false;
  check(sample);
}

// Every rounded moment is one of the two neighbours of the exact one, and their mean is it.
TEST(Adam, RoundsStochastically) {
  constexpr std::int64_t count = 100003;
  const AdamAttributes attributes{.stochastic = true, .key = 12};
  const Tensor mean = full({count}, 1.0, bf16), square = full({count}, 1.0, bf16);
  const auto step = [&](DType dtype) {
    const DType compute = dtype == f64 ? f64 : f32;
    return adam_update(ones({count}, dtype), full({count}, 0.5, dtype), mean, square,
                       full({}, 0.1, f64), ones({}, f64), ones({}, compute), attributes);
  };
  const double exact[] = {0.95, 0.99925};
  for (DType dtype : {f32, f64, bf16}) {
    const AdamResult r = step(dtype);
    const Tensor moments[] = {r.mean, r.square};
    for (int k : {0, 1}) {
      double sum = 0.0;
      const double gap = 0x1p-8;  // of bfloat16 in [0.5, 1)
      for (double value : values_of(moments[k])) {
        ASSERT_LT(std::abs(value - exact[k]), gap);
        sum += value;
      }
      // Five standard deviations of the mean of this many draws, each with at most gap / 2.
      EXPECT_NEAR(sum / count, exact[k], 5.0 * 0.5 * gap / std::sqrt(double{count}));
    }
  }
  // The same seed and step draw the same numbers; others do not.
  const Tensor moment = step(f32).square;
  const int before = threads();
  const auto bits = values_of(moment);
  set_threads(3);
  EXPECT_EQ(values_of(step(f32).square), bits);
  set_threads(before);
  Program program({.inputs = {}, .outputs = {moment}, .updates = {}});
  program.run();
  EXPECT_EQ(values_of(program.output(0)), bits);
  program.run();
  EXPECT_NE(values_of(program.output(0)), bits);
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
  expect_error([&] { adam_update(p, p, zeros({2}, bf16), p, s, s, one, {}); },
               {"[adam]", "mean square", "bfloat16"});
  expect_error([&] { adam_update(p, p, p, p, s, s, one, {.stochastic = true}); },
               {"[adam]", "bfloat16", "stochastically"});
}

}  // namespace
}  // namespace ebb::test
