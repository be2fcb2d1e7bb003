// The public functions and operators of the table's rows.
#include <fmt/core.h>

#include <limits>

#include "ebb/ops.h"
#include "ops/pointwise/convert.h"
#include "ops/pointwise/pointwise.h"

namespace ebb {
namespace {

Tensor call(std::string_view name, std::vector<Tensor> inputs) {
  return apply1(pointwise_op(name), std::move(inputs));
}

// Combines a tensor with a number; `combine` receives both as tensors of one dtype.
//
// An integer tensor accepts only numbers that its dtype represents: promoting the result or
// rounding the number would be surprising. Half types accept every number: if it is not exact in
// the half type, the computation is in float32 and the result is rounded once.
template <class Combine>
Tensor with_number(std::string_view row, const Tensor& x, double number, const Combine& combine) {
  if (x && !is_floating(x.dtype()) && x.dtype() != b8 && !holds(x.dtype(), number))
    call_on(pointwise_op(row), x)
        .fail_dtype(fmt::format("{} cannot hold {}; cast() the tensor to a floating dtype first",
                                name(x.dtype()), number));
  if (x && is_half(x.dtype()) && !holds(x.dtype(), number)) {
    const Tensor wide = cast(x, f32);
    return cast(combine(wide, scalar_like(wide, number)), x.dtype());
  }
  return combine(x, scalar_like(x, number));
}

}  // namespace

// clang-format off
Tensor add(const Tensor& a, const Tensor& b) { return call("add", {a, b}); }
Tensor sub(const Tensor& a, const Tensor& b) { return call("sub", {a, b}); }
Tensor mul(const Tensor& a, const Tensor& b) { return call("mul", {a, b}); }
Tensor div(const Tensor& a, const Tensor& b) { return call("div", {a, b}); }
Tensor pow(const Tensor& a, const Tensor& b) { return call("pow", {a, b}); }
Tensor maximum(const Tensor& a, const Tensor& b) { return call("maximum", {a, b}); }
Tensor minimum(const Tensor& a, const Tensor& b) { return call("minimum", {a, b}); }
Tensor equal(const Tensor& a, const Tensor& b) { return call("equal", {a, b}); }
Tensor not_equal(const Tensor& a, const Tensor& b) { return call("not_equal", {a, b}); }
Tensor less(const Tensor& a, const Tensor& b) { return call("less", {a, b}); }
Tensor less_equal(const Tensor& a, const Tensor& b) { return call("less_equal", {a, b}); }
Tensor greater(const Tensor& a, const Tensor& b) { return call("greater", {a, b}); }
Tensor greater_equal(const Tensor& a, const Tensor& b) { return call("greater_equal", {a, b}); }
Tensor logical_and(const Tensor& a, const Tensor& b) { return call("logical_and", {a, b}); }
Tensor logical_or(const Tensor& a, const Tensor& b) { return call("logical_or", {a, b}); }
Tensor logical_not(const Tensor& x) { return call("logical_not", {x}); }
Tensor neg(const Tensor& x) { return call("neg", {x}); }
Tensor exp(const Tensor& x) { return call("exp", {x}); }
Tensor log(const Tensor& x) { return call("log", {x}); }
Tensor sqrt(const Tensor& x) { return call("sqrt", {x}); }
Tensor rsqrt(const Tensor& x) { return call("rsqrt", {x}); }
Tensor reciprocal(const Tensor& x) { return call("reciprocal", {x}); }
Tensor square(const Tensor& x) { return call("square", {x}); }
Tensor abs(const Tensor& x) { return call("abs", {x}); }
Tensor sign(const Tensor& x) { return call("sign", {x}); }
Tensor sin(const Tensor& x) { return call("sin", {x}); }
Tensor cos(const Tensor& x) { return call("cos", {x}); }
Tensor tanh(const Tensor& x) { return call("tanh", {x}); }
Tensor sigmoid(const Tensor& x) { return call("sigmoid", {x}); }
Tensor relu(const Tensor& x) { return call("relu", {x}); }
Tensor gelu(const Tensor& x) { return call("gelu", {x}); }
Tensor gelu_tanh(const Tensor& x) { return call("gelu_tanh", {x}); }
Tensor silu(const Tensor& x) { return call("silu", {x}); }
Tensor softplus(const Tensor& x) { return call("softplus", {x}); }
Tensor erf(const Tensor& x) { return call("erf", {x}); }
Tensor where(const Tensor& c, const Tensor& a, const Tensor& b) { return call("where", {c, a, b}); }

Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
Tensor operator-(const Tensor& x) { return neg(x); }
// clang-format on

Tensor operator+(const Tensor& a, double b) {
  return with_number("add", a, b, [](const Tensor& x, const Tensor& n) { return add(x, n); });
}
Tensor operator+(double a, const Tensor& b) {
  return with_number("add", b, a, [](const Tensor& x, const Tensor& n) { return add(n, x); });
}
Tensor operator-(const Tensor& a, double b) {
  return with_number("sub", a, b, [](const Tensor& x, const Tensor& n) { return sub(x, n); });
}
Tensor operator-(double a, const Tensor& b) {
  return with_number("sub", b, a, [](const Tensor& x, const Tensor& n) { return sub(n, x); });
}
Tensor operator*(const Tensor& a, double b) {
  return with_number("mul", a, b, [](const Tensor& x, const Tensor& n) { return mul(x, n); });
}
Tensor operator*(double a, const Tensor& b) {
  return with_number("mul", b, a, [](const Tensor& x, const Tensor& n) { return mul(n, x); });
}
Tensor operator/(const Tensor& a, double b) {
  return with_number("div", a, b, [](const Tensor& x, const Tensor& n) { return div(x, n); });
}
Tensor operator/(double a, const Tensor& b) {
  return with_number("div", b, a, [](const Tensor& x, const Tensor& n) { return div(n, x); });
}

Tensor clamp(const Tensor& x, double low, double high) {
  return call("clamp", {x, scalar_like(x, low), scalar_like(x, high)});
}

Tensor pow(const Tensor& x, double exponent) {
  if (exponent == 0.0 && x && !is_floating(x.dtype())) return full_like(x, 1.0);
  if (exponent == 1.0) return x;
  if (exponent == 2.0) return square(x);
  if (exponent == 0.5) return sqrt(x);
  if (exponent == -0.5) return rsqrt(x);
  if (exponent == -1.0) return reciprocal(x);
  return with_number("pow", x, exponent,
                     [](const Tensor& a, const Tensor& b) { return pow(a, b); });
}

}  // namespace ebb
