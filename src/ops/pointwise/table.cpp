// Every elementwise function: its value, its gradient, and what the gradient reads.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ebb/ops.h"
#include "ops/cuda_kernels.h"
#include "ops/pointwise/pointwise.h"
#include "ops/pointwise/tiles.h"

namespace ebb {
namespace {

using Gradient = std::vector<Tensor> (*)(const GradientCall&, const NoAttributes&);

// Input and output dtypes of a row.
enum class Rule { numeric, floating, comparison, logical, select };

const Saved nothing{};
const Saved saves_input{.inputs = {0}, .outputs = {}};
const Saved saves_output{.inputs = {}, .outputs = {0}};
const Saved saves_both_inputs{.inputs = {0, 1}, .outputs = {}};

struct Definition {
  PointwiseRow row;
  std::string_view summary;
  Rule rule;
  Saved saved;
  Gradient gradient;
};

// Functions whose results exceed the range of float16 or the precision of half types.
constexpr std::string_view refuse_halves[] = {"exp",    "log",  "pow",        "rsqrt",
                                              "square", "sqrt", "reciprocal", "softplus"};

Tensor to_input(const GradientCall& call, int i, const Tensor& gradient) {
  return sum_to(gradient, call.input_type(i).shape);
}

// The gradient of a two-argument function from its two partial products, computed only where
// needed.
template <class A, class B>
std::vector<Tensor> both(const GradientCall& call, const A& first, const B& second) {
  return {call.needs(0) ? to_input(call, 0, first()) : Tensor{},
          call.needs(1) ? to_input(call, 1, second()) : Tensor{}};
}

constexpr double sqrt_2_over_pi = 0.79788456080286535588;
constexpr double inv_sqrt_2pi = 0.39894228040143267794;
constexpr double gelu_cubic = 0.044715;

Tensor call(std::string_view name, std::vector<Tensor> inputs);

// Activations with a long derivative have a separate row for their gradient, g · f'(x), which is
// one pass over memory and rounds once. Its gradient is the same row for g, and g · f''(x) for x.
std::vector<Tensor> slope_gradient(const GradientCall& c, std::string_view row,
                                   Tensor (*second)(const Tensor&)) {
  return both(
      c,
      [&] {
        return call(row, {c.grad(), c.input(1)});
      },
      [&] { return c.grad() * c.input(0) * second(c.input(1)); });
}

Tensor gelu_second(const Tensor& x) {
  const Tensor x2 = square(x);
  return exp(x2 * -0.5) * (2.0 - x2) * inv_sqrt_2pi;
}

// With t = tanh(u): ½ (1 - t²) (2 u' + x (u'' - 2 t u'²)).
Tensor gelu_tanh_second(const Tensor& x) {
  const Tensor x2 = square(x), t = tanh(x * (1.0 + x2 * gelu_cubic) * sqrt_2_over_pi);
  const Tensor first = (1.0 + x2 * (3.0 * gelu_cubic)) * sqrt_2_over_pi;
  const Tensor second = x * (6.0 * gelu_cubic * sqrt_2_over_pi);
  return 0.5 * (1.0 - square(t)) * (first * 2.0 + x * (second - t * square(first) * 2.0));
}

// With s = sigmoid(x): s (1 - s) (2 + x (1 - 2 s)).
Tensor silu_second(const Tensor& x) {
  const Tensor s = sigmoid(x);
  return s * (1.0 - s) * (2.0 + x * (1.0 - 2.0 * s));
}

// The operand that is not selected has no gradient, equal operands get half each, and with a NaN
// both get it.
std::vector<Tensor> extremum_gradient(const GradientCall& call, const Tensor& a_loses,
                                      const Tensor& b_loses) {
  const Tensor g = call.grad(), none = scalar_like(g, 0.0), half = g * 0.5;
  const Tensor tie = equal(call.input(0), call.input(1));
  return both(
      call, [&] { return where(tie, half, where(a_loses, none, g)); },
      [&] { return where(tie, half, where(b_loses, none, g)); });
}

// min(max(x, low), high), where a bound that is NaN makes every result NaN.
constexpr auto clamped = [](auto x, auto low, auto high) {
  const auto lifted = x < low || low != low ? low : x;
  return lifted > high || high != high ? high : lifted;
};

// clang-format off
const Definition table[] = {
  {{"add", 2, numeric2<[](auto a, auto b) { return a + b; }>(), "a + b"}, "a + b", Rule::numeric, nothing,
   [](const GradientCall& c, const NoAttributes&) { return both(c, [&] { return c.grad(); }, [&] { return c.grad(); }); }},
  {{"sub", 2, numeric2<[](auto a, auto b) { return a - b; }>(), "a - b"}, "a - b", Rule::numeric, nothing,
   [](const GradientCall& c, const NoAttributes&) { return both(c, [&] { return c.grad(); }, [&] { return -c.grad(); }); }},
  {{"mul", 2, numeric2<[](auto a, auto b) { return a * b; }>(), "a * b"}, "a · b", Rule::numeric, saves_both_inputs,
   [](const GradientCall& c, const NoAttributes&) {
     return both(c, [&] { return c.grad() * c.input(1); }, [&] { return c.grad() * c.input(0); }); }},
  {{"div", 2, floating2<[](auto a, auto b) { return a / b; }>(), "a / b", 2.0}, "a / b", Rule::floating, {.inputs = {1}, .outputs = {0}},
   [](const GradientCall& c, const NoAttributes&) {
     return both(c, [&] { return c.grad() / c.input(1); }, [&] { return -(c.grad() * c.output(0) / c.input(1)); }); }},
  {{"pow", 2, floating2<[](auto a, auto b) { return std::pow(a, b); }>(), "power(a, b)", 80.0}, "a to the power b", Rule::floating,
   {.inputs = {0, 1}, .outputs = {0}},
   [](const GradientCall& c, const NoAttributes&) {
     const Tensor &a = c.input(0), &b = c.input(1), none = scalar_like(c.grad(), 0.0);
     // The derivative is 0 for a constant, where the formula gives 0 · inf at 0, and for 0 to a
     // non-negative power, where the formula gives 0 · log 0.
     return both(c, [&] { return where(equal(b, none), none, c.grad() * (b * pow(a, b - 1.0))); },
       [&] { const Tensor flat = logical_and(equal(a, none), greater_equal(b, none));
             return where(flat, none, c.grad() * (c.output(0) * log(a))); }); }},
  {{"maximum", 2, numeric2<[](auto a, auto b) { return a != a ? a : (b != b ? b : (a > b ? a : b)); }>(), "a != a ? a : (b != b ? b : (a > b ? a : b))", 2.0}, "the larger of a and b; NaN wins",
   Rule::numeric, saves_both_inputs,
   [](const GradientCall& c, const NoAttributes&) { return extremum_gradient(c, less(c.input(0), c.input(1)), greater(c.input(0), c.input(1))); }},
  {{"minimum", 2, numeric2<[](auto a, auto b) { return a != a ? a : (b != b ? b : (a < b ? a : b)); }>(), "a != a ? a : (b != b ? b : (a < b ? a : b))", 2.0}, "the smaller of a and b; NaN wins",
   Rule::numeric, saves_both_inputs,
   [](const GradientCall& c, const NoAttributes&) { return extremum_gradient(c, greater(c.input(0), c.input(1)), less(c.input(0), c.input(1))); }},

  {{"equal", 2, comparison<[](auto a, auto b) { return a == b; }>(), "a == b", 10.0}, "a = b", Rule::comparison, nothing, zero_gradient},
  {{"not_equal", 2, comparison<[](auto a, auto b) { return a != b; }>(), "a != b", 10.0}, "a ≠ b", Rule::comparison, nothing, zero_gradient},
  {{"less", 2, comparison<[](auto a, auto b) { return a < b; }>(), "a < b", 10.0}, "a < b", Rule::comparison, nothing, zero_gradient},
  {{"less_equal", 2, comparison<[](auto a, auto b) { return a <= b; }>(), "a <= b", 10.0}, "a ≤ b", Rule::comparison, nothing, zero_gradient},
  {{"greater", 2, comparison<[](auto a, auto b) { return (a > b); }>(), "a > b", 10.0}, "a > b", Rule::comparison, nothing, zero_gradient},
  {{"greater_equal", 2, comparison<[](auto a, auto b) { return a >= b; }>(), "a >= b", 10.0}, "a ≥ b", Rule::comparison, nothing, zero_gradient},
  {{"logical_and", 2, {nullptr, nullptr, nullptr, nullptr, tile2<[](auto a, auto b) { return a & b; }, std::uint8_t, std::uint8_t>}, "a & b", 10.0},
   "a and b", Rule::logical, nothing, zero_gradient},
  {{"logical_or", 2, {nullptr, nullptr, nullptr, nullptr, tile2<[](auto a, auto b) { return a | b; }, std::uint8_t, std::uint8_t>}, "a | b", 10.0},
   "a or b", Rule::logical, nothing, zero_gradient},
  {{"logical_not", 1, {nullptr, nullptr, nullptr, nullptr, tile1<[](auto a) { return a ^ 1; }, std::uint8_t, std::uint8_t>}, "a ^ 1", 7.0},
   "not a", Rule::logical, nothing, zero_gradient},

  {{"neg", 1, numeric1<[](auto x) { return -x; }>(), "-a"}, "-x", Rule::numeric, nothing,
   [](const GradientCall& c, const NoAttributes&) { return std::vector{-c.grad()}; }},
  {{"exp", 1, floating1<[](auto x) { return vm::exp(x); }>(), "exponential(a)", 6.0}, "e to the x", Rule::floating, saves_output,
   [](const GradientCall& c, const NoAttributes&) { return std::vector{c.grad() * c.output(0)}; }},
  {{"log", 1, floating1<[](auto x) { return vm::log(x); }>(), "logarithm(a)", 8.0}, "natural logarithm", Rule::floating, saves_input,
   [](const GradientCall& c, const NoAttributes&) { return std::vector{c.grad() / c.input(0)}; }},
  {{"sqrt", 1, floating1<[](auto x) { return std::sqrt(x); }>(), "square_root(a)", 3.0}, "square root", Rule::floating, saves_output,
   [](const GradientCall& c, const NoAttributes&) { return std::vector{c.grad() / (c.output(0) * 2.0)}; }},
  {{"rsqrt", 1, floating1<[](auto x) { return decltype(x)(1) / std::sqrt(x); }>(), "T(1) / square_root(a)", 5.0}, "1 / √x", Rule::floating, saves_output,
   [](const GradientCall& c, const NoAttributes&) {
     return std::vector{c.grad() * c.output(0) * c.output(0) * c.output(0) * -0.5}; }},
  {{"reciprocal", 1, floating1<[](auto x) { return decltype(x)(1) / x; }>(), "T(1) / a", 2.0}, "1 / x", Rule::floating, saves_output,
   [](const GradientCall& c, const NoAttributes&) { return std::vector{-(c.grad() * c.output(0) * c.output(0))}; }},
  {{"square", 1, numeric1<[](auto x) { return x * x; }>(), "a * a"}, "x²", Rule::numeric, saves_input,
   [](const GradientCall& c, const NoAttributes&) { return std::vector{c.grad() * c.input(0) * 2.0}; }},
  {{"abs", 1, numeric1<[](auto x) { return (x > 0) ? x : 0 - x; }>(), "a > T(0) ? a : T(0) - a"}, "|x|, gradient 0 at 0", Rule::numeric, saves_input,
   [](const GradientCall& c, const NoAttributes&) { return std::vector{c.grad() * sign(c.input(0))}; }},
  {{"sign", 1, numeric1<[](auto x) { return static_cast<decltype(x)>((x > 0) - (x < 0)); }>(), "T((a > T(0)) - (a < T(0)))"}, "-1, 0 or 1", Rule::numeric, nothing,
   [](const GradientCall& c, const NoAttributes&) { return std::vector{zeros_like(c.grad())}; }},
  {{"sin", 1, floating1<[](auto x) { return std::sin(x); }>(), "sine(a)", 55.0}, "sine", Rule::floating, saves_input,
   [](const GradientCall& c, const NoAttributes&) { return std::vector{c.grad() * cos(c.input(0))}; }},
  {{"cos", 1, floating1<[](auto x) { return std::cos(x); }>(), "cosine(a)", 55.0}, "cosine", Rule::floating, saves_input,
   [](const GradientCall& c, const NoAttributes&) { return std::vector{-(c.grad() * sin(c.input(0)))}; }},
  {{"tanh", 1, floating1<[](auto x) { return vm::tanh(x); }>(), "hyperbolic_tangent(a)", 10.0}, "hyperbolic tangent", Rule::floating, saves_output,
   [](const GradientCall& c, const NoAttributes&) { return std::vector{c.grad() * (1.0 - square(c.output(0)))}; }},
  {{"sigmoid", 1, floating1<[](auto x) { return vm::sigmoid(x); }>(), "sigmoid(a)", 7.0}, "1 / (1 + e^-x)", Rule::floating, saves_output,
   [](const GradientCall& c, const NoAttributes&) { return std::vector{c.grad() * c.output(0) * (1.0 - c.output(0))}; }},
  {{"relu", 1, numeric1<[](auto x) { return x < 0 ? decltype(x)(0) : x; }>(), "a < T(0) ? T(0) : a"}, "max(x, 0), gradient 0 at 0; NaN stays, and its gradient passes", Rule::numeric, saves_output,
   [](const GradientCall& c, const NoAttributes&) {
     const Tensor zero = scalar_like(c.grad(), 0.0);
     return std::vector{where(less_equal(c.output(0), zero), zero, c.grad())}; }},
  {{"gelu", 1, floating1<[](auto x) { using T = decltype(x); return T(0.5) * x * (T(1) + vm::erf(x * T(std::numbers::sqrt2 / 2))); }>(), "gelu<K>(a)", 17.0},
   "x · Φ(x), exact", Rule::floating, saves_input,
   [](const GradientCall& c, const NoAttributes&) { return std::vector{call("gelu_grad", {c.grad(), c.input(0)})}; }},
  {{"gelu_grad", 2, floating2<[](auto g, auto x) { using T = decltype(x);
     return g * (T(0.5) * (T(1) + vm::erf(x * T(std::numbers::sqrt2 / 2))) + x * vm::exp(x * x * T(-0.5)) * T(inv_sqrt_2pi)); }>(), "a * gelu_slope<K>(b)", 24.0},
   "the gradient of gelu in x", Rule::floating, saves_both_inputs,
   [](const GradientCall& c, const NoAttributes&) { return slope_gradient(c, "gelu_grad", gelu_second); }},
  {{"gelu_tanh", 1, floating1<[](auto x) { using T = decltype(x);
     return T(0.5) * x * (T(1) + vm::tanh(T(sqrt_2_over_pi) * (x + T(gelu_cubic) * x * x * x))); }>(), "gelu_tanh<K>(a)", 14.0},
   "GPT-2's approximation of gelu by tanh", Rule::floating, saves_input,
   [](const GradientCall& c, const NoAttributes&) { return std::vector{call("gelu_tanh_grad", {c.grad(), c.input(0)})}; }},
  {{"gelu_tanh_grad", 2, floating2<[](auto g, auto x) { using T = decltype(x);
     const T x2 = x * x, t = vm::tanh(T(sqrt_2_over_pi) * (x + T(gelu_cubic) * x * x2));
     return g * T(0.5) * (T(1) + t + x * (T(1) - t * t) * (T(1) + T(3 * gelu_cubic) * x2) * T(sqrt_2_over_pi)); }>(), "gelu_tanh_grad(a, b)", 15.0},
   "the gradient of gelu_tanh in x", Rule::floating, saves_both_inputs,
   [](const GradientCall& c, const NoAttributes&) { return slope_gradient(c, "gelu_tanh_grad", gelu_tanh_second); }},
  {{"silu", 1, floating1<[](auto x) { return x * vm::sigmoid(x); }>(), "a * sigmoid(a)", 7.0}, "x · sigmoid(x)", Rule::floating, saves_input,
   [](const GradientCall& c, const NoAttributes&) { return std::vector{call("silu_grad", {c.grad(), c.input(0)})}; }},
  {{"silu_grad", 2, floating2<[](auto g, auto x) { using T = decltype(x);
     const T s = vm::sigmoid(x); return g * s * (T(1) + x * (T(1) - s)); }>(), "silu_grad(a, b)", 8.0},
   "the gradient of silu in x", Rule::floating, saves_both_inputs,
   [](const GradientCall& c, const NoAttributes&) { return slope_gradient(c, "silu_grad", silu_second); }},
  {{"softplus", 1, floating1<[](auto x) { return vm::softplus(x); }>(), "softplus(a)", 24.0}, "log(1 + e^x)", Rule::floating, saves_input,
   [](const GradientCall& c, const NoAttributes&) { return std::vector{c.grad() * sigmoid(c.input(0))}; }},
  {{"erf", 1, floating1<[](auto x) { return vm::erf(x); }>(), "error_function(a)", 15.0}, "the error function", Rule::floating, saves_input,
   [](const GradientCall& c, const NoAttributes&) {
     return std::vector{c.grad() * exp(-square(c.input(0))) * (2.0 * std::numbers::inv_sqrtpi)}; }},

  {{"clamp", 3, {tile3<clamped, double, double>, tile3<clamped, float, float>},
    "(((a < b || b != b) ? b : a) > c || c != c) ? c : ((a < b || b != b) ? b : a)", 2.0},
   "x held within [low, high]; gradient 1 inside and 0 on the bounds and beyond", Rule::floating, {.inputs = {0, 1, 2}, .outputs = {}},
   [](const GradientCall& c, const NoAttributes&) {
     const Tensor inside = logical_and(greater(c.input(0), c.input(1)), less(c.input(0), c.input(2)));
     return std::vector{to_input(c, 0, where(inside, c.grad(), scalar_like(c.grad(), 0.0))), Tensor{}, Tensor{}}; }},
  {{"where", 3, {tile3<[](auto c, auto a, auto b) { return c ? a : b; }, std::uint8_t, double>,
                 tile3<[](auto c, auto a, auto b) { return c ? a : b; }, std::uint8_t, float>,
                 tile3<[](auto c, auto a, auto b) { return c ? a : b; }, std::uint8_t, std::int64_t>,
                 tile3<[](auto c, auto a, auto b) { return c ? a : b; }, std::uint8_t, std::int32_t>,
                 tile3<[](auto c, auto a, auto b) { return c ? a : b; }, std::uint8_t, std::uint8_t>}, "a ? b : c", 2.0},
   "a where the condition holds, else b", Rule::select, saves_input,
   [](const GradientCall& c, const NoAttributes&) {
     const Tensor none = scalar_like(c.grad(), 0.0);
     return std::vector{Tensor{}, c.needs(1) ? to_input(c, 1, where(c.input(0), c.grad(), none)) : Tensor{},
                        c.needs(2) ? to_input(c, 2, where(c.input(0), none, c.grad())) : Tensor{}}; }},
};
// clang-format on

void check_dtypes(const Call& call, Rule rule) {
  const int first_value = rule == Rule::select ? 1 : 0;
  for (int i = first_value; i + 1 < call.count(); ++i) call.require_same_dtype(i, i + 1);
  const DType dtype = call.dtype(call.count() - 1);
  if (rule == Rule::floating) call.require_floating(call.count() - 1);
  if (rule == Rule::numeric && dtype == b8)
    call.fail_dtype("booleans have no arithmetic; cast() them first");
  if (rule == Rule::logical && dtype != b8)
    call.fail_dtype(fmt::format("inputs must be bool, but are {}", name(dtype)));
  if (rule == Rule::select && call.dtype(0) != b8)
    call.fail_dtype(fmt::format("the condition must be bool, but is {}", name(call.dtype(0))));
}

template <Rule rule>
std::vector<TensorType> infer(const Call& call, const NoAttributes&) {
  if (call.count() != call.op.pointwise()->arity)
    call.fail_value(
        fmt::format("takes {} inputs, but {} came", call.op.pointwise()->arity, call.count()));
  check_dtypes(call, rule);
  Shape shape = call.shape(0);
  for (int i = 1; i < call.count(); ++i)
    if (!broadcast(Shape(shape), call.shape(i), shape)) call.fail_shape("shapes do not broadcast");
  const DType result = rule == Rule::comparison ? b8 : call.dtype(call.count() - 1);
  const TileType tile = tile_type(call.dtype(call.count() - 1));
  if (!call.op.pointwise()->tiles[static_cast<std::size_t>(tile)])
    call.fail_dtype(fmt::format("is not defined for {}", name(call.dtype(0))));
  return {{shape, result}};
}

std::vector<TensorType> (*infer_by(Rule rule))(const Call&, const NoAttributes&) {
  switch (rule) {
    case Rule::numeric:
      return infer<Rule::numeric>;
    case Rule::floating:
      return infer<Rule::floating>;
    case Rule::comparison:
      return infer<Rule::comparison>;
    case Rule::logical:
      return infer<Rule::logical>;
    case Rule::select:
      break;
  }
  return infer<Rule::select>;
}

bool accepts_any(const Arg&, int, const NoAttributes&) { return true; }

FusedAttributes single(const KernelRequest& request) {
  FusedAttributes program;
  PointwiseInstruction instruction{
      .row = request.op.pointwise(), .operands = {}, .dtype = request.out().dtype(), .numbers = {}};
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    program.input_dtypes.push_back(request.inputs[i].dtype());
    instruction.operands.push_back(static_cast<int>(i));
  }
  program.code = {instruction};
  program.shape = request.out().shape();
  return program;
}

struct OpTable {
  std::vector<std::unique_ptr<const Op>> owned;
  std::vector<const Op*> ops;
};

const OpTable& op_table() {
  static const OpTable ops = [] {
    OpTable result;
    for (const Definition& d : table) {
      OpSpec<NoAttributes> spec{.name = d.row.name, .summary = d.summary};
      spec.infer = infer_by(d.rule);
      spec.gradient = d.gradient;
      spec.saved = d.saved;
      for (int i = 0; i < d.row.arity; ++i) spec.in_place.push_back({.output = 0, .input = i});
      spec.accepts = accepts_any;
      if (std::ranges::find(refuse_halves, d.row.name) != std::end(refuse_halves))
        spec.narrowing = Narrowing::refused;
      spec.cpu = [](const KernelRequest& r, const NoAttributes&) {
        return bind_pointwise(r, single(r));
      };
      spec.cuda = EBB_CUDA_KERNEL([](const KernelRequest& r, const NoAttributes&) {
        return bind_pointwise_cuda(r, single(r));
      });
      spec.operations = d.row.work;
      spec.pointwise = &d.row;
      result.owned.push_back(std::make_unique<TypedOp<NoAttributes>>(spec));
      result.ops.push_back(result.owned.back().get());
    }
    return result;
  }();
  return ops;
}

Tensor call(std::string_view name, std::vector<Tensor> inputs) {
  return apply1(pointwise_op(name), std::move(inputs));
}

}  // namespace

std::span<const Op* const> pointwise_ops() { return op_table().ops; }

const Op& pointwise_op(std::string_view name) {
  for (const Op* op : op_table().ops)
    if (op->name() == name) return *op;
  throw std::logic_error(fmt::format("no elementwise op is named {}", name));
}

}  // namespace ebb
