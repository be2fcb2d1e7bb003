#include "ops/adafactor/adafactor.h"

#include <gtest/gtest.h>

#include "support/op_check.h"

namespace ebb::test {
namespace {

// The state's sizes as inputs 2 and 3 (or 2 alone), the momentum's last.
Sample step(const char* name, Shape shape, AdafactorAttributes attributes, double count = 3.0) {
  Sample sample{name, {SampleInput::real(shape), SampleInput::real(shape, 0.2, 1.5)}, {}};
  if (shape.rank() >= 2) {
    const FactorShapes factors = factor_shapes(shape);
    sample.inputs.push_back(SampleInput::real(factors.rows, 0.5, 2.0));
    sample.inputs.push_back(SampleInput::real(factors.columns, 0.5, 2.0));
  } else {
    sample.inputs.push_back(SampleInput::real(shape, 0.5, 2.0));
  }
  if (attributes.momentum) sample.inputs.push_back(SampleInput::real(shape));
  sample.function = [=](const std::vector<Tensor>& x) {
    const DType state = x[0].dtype() == f64 ? f64 : f32;
    std::vector<Tensor> kept;
    for (std::size_t i = 2; i < x.size(); ++i) kept.push_back(cast(x[i], state));
    return adafactor_update(x[0], x[1], full({}, 0.05, f64), full({}, count, f64),
                            full({}, 0.5, state), kept, attributes);
  };
  return sample;
}

TEST(Adafactor, StepsAndTheirDerivatives) {
  check(step("the paper's", {3, 5}, {.clip_threshold = 1.0}));
  check(step("clipped", {3, 5}, {.clip_threshold = 0.1, .weight_decay = 0.1}));
  check(step("warm-up", {4, 3}, {.warm_up = true}, 700.0));
  check(step("limited by the count", {4, 3}, {.clip_threshold = 1.0}, 900.0));
  check(step("a given rate", {4, 3},
             {.relative_step = false, .scale_by_parameter = false, .weight_decay = 0.1}));
  check(step("decay by the rate", {4, 3}, {.weight_decay = 0.1, .decay_by_step = false}));
  check(step("momentum", {4, 3},
             {.clip_threshold = 0.2, .momentum = true, .beta1 = 0.9, .weight_decay = 0.1}));
  check(step("stacked matrices", {2, 3, 2, 3}, {.clip_threshold = 0.3}));
  check(step("a vector", {7}, {.clip_threshold = 0.3, .weight_decay = 0.1}));
  check(step("a vector with momentum", {7}, {.momentum = true, .beta1 = 0.8}));
  check(step("a number", {}, {.clip_threshold = 1.0}));
}

// Sizes that are cut into pieces along rows or along columns, and many small matrices.
TEST(Adafactor, LargeTensorsEqualTheReference) {
  for (const Shape& shape : {Shape{1031, 300}, Shape{130, 2053}, Shape{300, 3, 5}, Shape{70001}}) {
    SCOPED_TRACE(to_string(shape));
    Sample sample = step("large", shape, {.clip_threshold = 0.5, .weight_decay = 0.1});
    std::vector<Tensor> x;
    for (std::size_t i = 0; i < sample.inputs.size(); ++i)
      x.push_back(make_input(sample.inputs[i], f64, i));
    const std::vector<Tensor> actual = sample.function(x);
    const Node& node = *actual[0].node();
    const auto expected = node.op().reference(node.inputs(), node.attributes());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const auto a = values_of(actual[i]), b = values_of(expected[i]);
      for (std::size_t k = 0; k < a.size(); ++k)
        ASSERT_NEAR(a[k], b[k], 1e-12) << "output " << i;  // float64, thousands of terms
    }
  }
}

TEST(Adafactor, BitsDoNotDependOnThreads) {
  const int before = threads();
  for (const Shape& shape : {Shape{1031, 300}, Shape{130, 2053}, Shape{300, 3, 5}, Shape{70001}}) {
    Sample sample = step("threads", shape, {.clip_threshold = 0.5});
    std::vector<Tensor> x;
    for (std::size_t i = 0; i < sample.inputs.size(); ++i)
      x.push_back(make_input(sample.inputs[i], f32, i));
    std::vector<std::vector<float>> results;
    for (int count : {1, 2, 3, 7}) {
      set_threads(count);
      results.push_back({});
      for (const Tensor& t : sample.function(x))
        for (float value : t.to_vector<float>()) results.back().push_back(value);
    }
    for (const auto& result : results) EXPECT_EQ(result, results[0]) << to_string(shape);
  }
  set_threads(before);
}

// A gradient of zeros moves nothing, however small the second moments.
TEST(Adafactor, StandsStillWithoutAGradient) {
  const auto out = adafactor_update(ones({2, 3}), zeros({2, 3}), full({}, 0.1, f64), ones({}, f64),
                                    ones({}), {zeros({2}), zeros({3})}, {.clip_threshold = 1.0});
  EXPECT_EQ(out[0].to_vector<float>(), std::vector<float>(6, 1.0f));
}

TEST(Adafactor, UpdatesVariablesInPlace) {
  const Shape shape{500, 400};
  const Variable p(ones(shape)), rows(zeros({500}), Category::optimizer),
      columns(zeros({400}), Category::optimizer);
  const auto out = adafactor_update(p, full(shape, 2.0), full({}, 0.01, f64), full({}, 1.0, f64),
                                    ones({}), {rows, columns}, {.clip_threshold = 1.0});
  Program program(
      {.inputs = {}, .outputs = {}, .updates = {{p, out[0]}, {rows, out[1]}, {columns, out[2]}}});
  program.run();
  EXPECT_NEAR(p.to_vector<float>()[999], 0.99f, 1e-6f);
  // The gradient, scalars and partial sums; neither a copy of the parameter nor a whole update.
  EXPECT_LT(program.plan().live_peak, p.type().bytes() + 64_KiB);
}

TEST(Adafactor, Errors) {
  const Tensor p = zeros({2, 3}), s = zeros({}, f64), one = ones({});
  expect_error(
      [&] {
        adafactor_update(p, p, s, s, one, {zeros({2}), zeros({2})}, {});
      },
      {"[adafactor]", "float32 (2,), float32 (3,)"});
  expect_error([&] { adafactor_update(p, p, s, s, one, {zeros({2})}, {}); },
               {"[adafactor]", "the state must be"});
  expect_error(
      [&] {
        adafactor_update(p, p, s, s, one, {zeros({2}), zeros({3})}, {.eps_square = 0.0});
      },
      {"[adafactor]", "eps_square=0"});
}

}  // namespace
}  // namespace ebb::test
