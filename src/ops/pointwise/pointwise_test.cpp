#include <gtest/gtest.h>

#include <cmath>

#include "support/op_check.h"

namespace ebb::test {
namespace {

using Function1 = Tensor (*)(const Tensor&);
using Function2 = Tensor (*)(const Tensor&, const Tensor&);

Sample unary(const char* name, Function1 f, double low = -1.5, double high = 1.5) {
  return {name, {SampleInput::real({3, 5}, low, high)}, [f](const auto& x) {
            return std::vector{f(x[0])};
          }};
}

Sample binary(const char* name, Function2 f, Shape a, Shape b, double low = -1.5,
              double high = 1.5) {
  return {name,
          {SampleInput::real(a, low, high), SampleInput::real(b, low, high)},
          [f](const auto& x) { return std::vector{f(x[0], x[1])}; }};
}

TEST(Pointwise, UnaryFunctions) {
  for (const Sample& sample : {
           unary("neg", neg),
           unary("exp", exp),
           unary("log", log, 0.2, 3.0),
           unary("sqrt", sqrt, 0.2, 3.0),
           unary("rsqrt", rsqrt, 0.3, 3.0),
           unary("reciprocal", reciprocal, 0.3, 2.0),
           unary("square", square),
           unary("abs", abs),
           unary("sign", sign),
           unary("sin", sin),
           unary("cos", cos),
           unary("tanh", tanh),
           unary("sigmoid", sigmoid),
           unary("relu", relu),
           unary("gelu", gelu, -3.0, 3.0),
           unary("gelu_tanh", gelu_tanh, -3.0, 3.0),
           unary("silu", silu, -3.0, 3.0),
           unary("softplus", softplus, -3.0, 3.0),
           unary("erf", erf, -2.5, 2.5),
       })
    check(sample);
}

TEST(Pointwise, BinaryFunctionsBroadcast) {
  check(binary("add", add, {3, 4}, {4}));
  check(binary("sub", sub, {2, 1, 4}, {3, 1}));
  check(binary("mul", mul, {3, 4}, {3, 1}));
  check(binary("div", div, {3, 4}, {}, 0.5, 2.0));
  check(binary("pow", pow, {3, 4}, {4}, 0.4, 2.0));
  check(binary("maximum", maximum, {3, 4}, {4}));
  check(binary("minimum", minimum, {3, 4}, {3, 4}));
}

TEST(Pointwise, SelectionAndLogic) {
  check({"where",
         {SampleInput::boolean({3, 4}), SampleInput::real({4}), SampleInput::real({3, 1})},
         [](const auto& x) { return std::vector{where(x[0], x[1], x[2])}; }});
  check({"clamp", {SampleInput::real({4, 5})}, [](const auto& x) {
           return std::vector{clamp(x[0], -0.7, 0.6)};
         }});
  check({"comparisons", {SampleInput::real({3, 4}), SampleInput::real({3, 4})}, [](const auto& x) {
           return std::vector{equal(x[0], x[1]),   not_equal(x[0], x[1]),
                              less(x[0], x[1]),    less_equal(x[0], x[1]),
                              greater(x[0], x[1]), greater_equal(x[0], x[1])};
         }});
  check({"logic", {SampleInput::boolean({3, 4}), SampleInput::boolean({4})}, [](const auto& x) {
           return std::vector{logical_and(x[0], x[1]), logical_or(x[0], x[1]), logical_not(x[0])};
         }});
}

}  // namespace
}  // namespace ebb::test
