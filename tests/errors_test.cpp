// Misuse of everything public: each gives one error that names the op, the module path and the
// given values.
#include <gtest/gtest.h>

#include <cmath>

#include "ebb/error.h"
#include "ebb/node.h"
#include "ebb/storage.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

struct Misuse {
  std::function<void()> use;
  std::vector<std::string> parts;  // of the message, besides the path
};

// Each misuse happens inside a module, whose path the message must name.
void expect_errors(const std::vector<Misuse>& list) {
  for (const Misuse& misuse : list) {
    const PathScope outer("h.3"), inner("mlp");
    std::vector<std::string> parts = misuse.parts;
    parts.push_back("h.3.mlp");
    expect_error(misuse.use, parts);
  }
}

const Tensor none;

TEST(Errors, EmptyTensorsAreNamed) {
  const std::vector<std::pair<const char*, std::function<void()>>> uses{
      {"unary", [] { exp(none); }},
      {"binary", [] { add(zeros({2}), none); }},
      {"scalar", [] { none + 1.0; }},
      {"pow", [] { pow(none, 3.0); }},
      {"clamp", [] { clamp(none, 0.0, 1.0); }},
      {"cast", [] { cast(none, f64); }},
      {"dropout", [] { dropout(none, 0.5); }},
      {"stop_gradient", [] { stop_gradient(none); }},
      {"zeros_like", [] { zeros_like(none); }},
      {"sum", [] { sum(none); }},
      {"mean", [] { mean(none, {0}); }},
      {"norm", [] { norm(none); }},
      {"sum_to", [] { sum_to(none, {1}); }},
      {"reshape", [] { reshape(none, {1}); }},
      {"flatten", [] { flatten(none); }},
      {"permute", [] { permute(none, {0}); }},
      {"transpose", [] { transpose(none); }},
      {"expand", [] { expand(none, {2}); }},
      {"squeeze", [] { squeeze(none, 0); }},
      {"unsqueeze", [] { unsqueeze(none, 0); }},
      {"slice", [] { slice(none, 0, 0, 1); }},
      {"split", [] { split(none, 0, {1}); }},
      {"chunk", [] { chunk(none, 0, 2); }},
      {"concat",
       [] {
         concat({none, none}, 0);
       }},
      {"concat of one", [] { concat({none}, 0); }},
      {"stack", [] { stack({none}, 0); }},
      {"pad", [] { pad(none, {0}, {0}); }},
      {"contiguous", [] { contiguous(none); }},
      {"gather", [] { gather(none, 0, zeros({1}, i64)); }},
      {"gather index", [] { gather(zeros({1}), 0, none); }},
      {"scatter_add", [] { scatter_add(none, 0, zeros({1}, i64), zeros({1})); }},
      {"one_hot", [] { one_hot(none, 3); }},
      {"matmul",
       [] {
         matmul(none, zeros({2, 2}));
       }},
      {"linear",
       [] {
         linear(zeros({2, 2}), none);
       }},
      {"where", [] { where(none, zeros({1}), zeros({1})); }},
      {"Variable", [] { Variable v{Tensor{}}; }},
      {"to_vector", [] { none.to_vector<float>(); }},
      {"shape", [] { none.shape(); }},
      {"dtype", [] { none.dtype(); }},
      {"device", [] { none.device(); }},
  };
  for (const auto& [name, use] : uses) {
    SCOPED_TRACE(name);
    const PathScope path("h.3.mlp");
    expect_error(use, {"empty tensor"});
  }
  expect_error([] { none.item(); }, {"[item]", "empty"});
}

TEST(Errors, Making) {
  expect_errors({
      {[] {
         full({2, -1}, 0.0);
       },
       {"[full]", "(2, -1)"}},
      {[] { arange(-1); }, {"[arange]", "(-1,)"}},
      {[] { arange(3, u8); }, {"[arange]", "uint8"}},
      {[] { random_uniform({2}, 0.0, 1.0, i64); }, {"[random_uniform]", "int64"}},
      {[] { random_normal({2}, 0.0, 1.0, b8); }, {"[random_normal]", "bool"}},
      {[] { random_normal({-2}, 0.0, 1.0); }, {"[random_normal]", "(-2,)"}},
      {[] {
         input({{-4}, f32}, "x");
       },
       {"[input]", "(-4,)"}},
      {[] { dropout(zeros({2}), 1.0); }, {"[dropout_mask]", "[0, 1)", "but is 1"}},
      {[] { dropout(zeros({2}), -0.1); }, {"[dropout_mask]", "-0.1"}},
      {[] { dropout(zeros({2}), NAN); }, {"[dropout_mask]", "nan"}},
      {[] { dropout(zeros({2}, i32), 0.5); }, {"[dropout_mask]", "int32"}},
  });
  expect_error(
      [] {
        Tensor::from(std::vector<float>{1, 2, 3}, {2, 2});
      },
      {"[constant]", "float32 (2, 2)", "16 bytes", "12 came"});
  expect_error([] { Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}; }, {"at most 8 dimensions"});
}

TEST(Errors, Elementwise) {
  const std::vector<std::pair<std::string, Tensor (*)(const Tensor&, const Tensor&)>> two{
      {"add", add},
      {"sub", sub},
      {"mul", mul},
      {"div", div},
      {"pow", pow},
      {"maximum", maximum},
      {"minimum", minimum},
      {"equal", equal},
      {"not_equal", not_equal},
      {"less", less},
      {"less_equal", less_equal},
      {"greater", greater},
      {"greater_equal", greater_equal}};
  for (const auto& [name, f] : two)
    expect_errors({
        {[f = f] {
           f(zeros({2, 3}), zeros({4}));
         },
         {"[" + name + "]", "broadcast", "float32 (2, 3)", "float32 (4,)"}},
        {[f = f] { f(zeros({2}), zeros({2}, f64)); },
         {"[" + name + "]", "same dtype", "float32 and float64"}},
    });
  const std::vector<std::pair<std::string, Tensor (*)(const Tensor&)>> real{
      {"exp", exp},
      {"log", log},
      {"sqrt", sqrt},
      {"rsqrt", rsqrt},
      {"reciprocal", reciprocal},
      {"sin", sin},
      {"cos", cos},
      {"tanh", tanh},
      {"sigmoid", sigmoid},
      {"gelu", gelu},
      {"gelu_tanh", gelu_tanh},
      {"silu", silu},
      {"softplus", softplus},
      {"erf", erf}};
  for (const auto& [name, f] : real)
    expect_errors(
        {{[f = f] { f(zeros({2}, i64)); }, {"[" + name + "]", "floating-point", "int64"}}});
  const std::vector<std::pair<std::string, Tensor (*)(const Tensor&)>> numeric{
      {"neg", neg}, {"square", square}, {"abs", abs}, {"sign", sign}, {"relu", relu}};
  for (const auto& [name, f] : numeric)
    expect_errors({{[f = f] { f(zeros({2}, b8)); }, {"[" + name + "]", "bool"}}});
  expect_errors({
      {[] { div(zeros({2}, i32), zeros({2}, i32)); }, {"[div]", "floating-point", "int32"}},
      {[] { clamp(zeros({2}, i32), 0.0, 1.0); }, {"[clamp]", "int32"}},
      {[] { logical_and(zeros({2}), zeros({2})); }, {"[logical_and]", "bool", "float32"}},
      {[] { logical_or(zeros({2}, b8), zeros({3}, b8)); }, {"[logical_or]", "broadcast"}},
      {[] { logical_not(zeros({2}, u8)); }, {"[logical_not]", "uint8"}},
      {[] { where(zeros({2}), zeros({2}), zeros({2})); }, {"[where]", "condition", "float32"}},
      {[] { where(zeros({2}, b8), zeros({2}), zeros({2}, f64)); },
       {"[where]", "float32 and float64"}},
      {[] { where(zeros({2}, b8), zeros({3}), zeros({3})); }, {"[where]", "broadcast"}},
  });
}

TEST(Errors, Reductions) {
  const std::vector<std::pair<std::string, Tensor (*)(const Tensor&, const Axes&, Keep)>> list{
      {"sum", sum}, {"sum_squares", sum_squares}, {"max", max}, {"min", min}};
  for (const auto& [name, f] : list)
    expect_errors({
        {[f = f] {
           f(zeros({2, 3}), {2}, Keep::no);
         },
         {"[" + name + "]", "axis 2", "[-2, 2)"}},
        {[f = f] {
           f(zeros({2, 3}), {-3}, Keep::no);
         },
         {"[" + name + "]", "axis -3"}},
        {[f = f] { f(zeros({}), {0}, Keep::no); }, {"[" + name + "]", "axis 0", "rank 0"}},
        {[f = f] { f(zeros({2}, b8), {}, Keep::no); }, {"[" + name + "]", "bool"}},
    });
  expect_errors({
      {[] {
         max(zeros({2, 0}));
       },
       {"[max]", "no elements", "(2, 0)"}},
      {[] { min(zeros({0})); }, {"[min]", "no elements"}},
      {[] { mean(zeros({2}), {1}); }, {"[sum]", "axis 1"}},
      {[] { norm(zeros({2}), 2.0, {1}); }, {"[sum_squares]", "axis 1"}},
  });
}

TEST(Errors, Shapes) {
  const Tensor x = zeros({2, 3});
  expect_errors({
      {[&] {
         reshape(x, {4, 2});
       },
       {"[reshape]", "6 elements", "(4, 2)"}},
      {[&] {
         reshape(x, {-1, -1});
       },
       {"[reshape]", "at most one -1", "(-1, -1)"}},
      {[&] {
         reshape(x, {-2, 3});
       },
       {"[reshape]", "(-2, 3)"}},
      {[&] {
         reshape(x, {0, -1});
       },
       {"[reshape]", "(0, -1)"}},
      {[&] { flatten(x, 2); }, {"[reshape]", "axis 2"}},
      {[&] { permute(x, {0}); }, {"[permute]", "2 axes", "(0,)"}},
      {[&] {
         permute(x, {0, 0});
       },
       {"[permute]", "(0, 0)"}},
      {[&] {
         permute(x, {0, 1, 2});
       },
       {"[permute]", "axis 2"}},
      {[&] { transpose(x, 0, 2); }, {"[permute]", "axis 2"}},
      {[&] { transpose(zeros({2})); }, {"[permute]", "axis -2"}},
      {[&] {
         expand(x, {3, 3});
       },
       {"[expand]", "(3, 3)", "(2, 3)"}},
      {[&] { expand(x, {3}); }, {"[expand]", "(3,)"}},
      {[&] { squeeze(x, 0); }, {"[reshape]", "squeeze", "size 1"}},
      {[&] { squeeze(x, 2); }, {"[reshape]", "axis 2"}},
      {[&] { unsqueeze(x, 3); }, {"[reshape]", "axis 3"}},
      {[&] { slice(x, 2, 0, 1); }, {"[slice]", "axis 2"}},
      {[&] { slice(x, 1, -1, 2); }, {"[slice]", "[-1, 2)"}},
      {[&] { slice(x, 1, 2, 1); }, {"[slice]", "[2, 1)"}},
      {[&] { slice(x, 1, 0, 4); }, {"[slice]", "[0, 4)", "size 3"}},
      {[&] { slice(x, 1, 0, 3, 0); }, {"[slice]", "step", "0"}},
      {[&] {
         split(x, 1, {1, 1});
       },
       {"[split]", "add up to 2", "size 3"}},
      {[&] {
         split(x, 1, {4, -1});
       },
       {"[split]", "negative", "-1"}},
      {[&] { split(x, 1, {}); }, {"[split]", "add up to 0"}},
      {[&] { split(x, -3, {3}); }, {"[split]", "axis -3"}},
      {[&] { chunk(x, 1, 2); }, {"[split]", "2 equal parts"}},
      {[&] { chunk(x, 1, 0); }, {"[split]", "0 equal parts"}},
      {[&] {
         concat({x, zeros({3, 3})}, 1);
       },
       {"[concat]", "part 1", "axis 0"}},
      {[&] {
         concat({x, zeros({2})}, 1);
       },
       {"[concat]", "rank"}},
      {[&] {
         concat({x, x}, 2);
       },
       {"[concat]", "axis 2"}},
      {[&] {
         concat({x, x}, -3);
       },
       {"[concat]", "axis -3"}},
      {[&] {
         concat({x, zeros({2, 3}, i64)}, 0);
       },
       {"[concat]", "float32 and int64"}},
      {[&] {
         stack({x, zeros({3, 2})}, 0);
       },
       {"[concat]", "part 1"}},
      {[&] {
         stack({x, x}, 3);
       },
       {"axis 3"}},
      {[&] { pad(x, {1}, {1}); }, {"[pad]", "2 axes", "(1,)"}},
      {[&] {
         pad(x, {0, -1}, {0, 0});
       },
       {"[pad]", "negative", "(0, -1)"}},
      {[&] {
         gather(x, 2, zeros({2, 3}, i64));
       },
       {"[gather]", "axis 2"}},
      {[&] {
         gather(x, -3, zeros({2, 3}, i64));
       },
       {"[gather]", "axis -3"}},
      {[&] {
         gather(x, 0, zeros({2, 3}));
       },
       {"[gather]", "int64 or int32", "float32"}},
      {[&] { gather(x, 0, zeros({2}, i64)); }, {"[gather]", "rank 2"}},
      {[&] {
         gather(x, 0, zeros({2, 2}, i64));
       },
       {"[gather]", "along 1"}},
      {[&] {
         scatter_add(x, -3, zeros({2, 3}, i64), x);
       },
       {"[scatter_add]", "axis -3"}},
      {[&] {
         scatter_add(x, 0, zeros({2, 3}, i64), zeros({1, 3}));
       },
       {"[scatter_add]", "same shape"}},
      {[&] {
         scatter_add(x, 0, zeros({2, 3}, i64), zeros({2, 3}, f64));
       },
       {"[scatter_add]", "float32 and float64"}},
      {[&] { one_hot(zeros({2}, b8), 3); }, {"bool"}},
      {[&] { one_hot(zeros({2}, i64), -1); }, {"[full]", "(2, -1)"}},
  });
  expect_error([] { concat({}, 0); }, {"[concat]", "none came"});
  expect_error([] { stack({}, 0); }, {"[concat]", "none came"});
}

TEST(Errors, Products) {
  expect_errors({
      {[] {
         matmul(zeros({2, 3}), zeros({4, 5}));
       },
       {"[matmul]", "3 and 4", "(2, 3)", "(4, 5)"}},
      {[] {
         matmul(zeros({2, 3}), zeros({3, 5}), Transpose::yes);
       },
       {"[matmul]", "2 and 3"}},
      {[] {
         matmul(zeros({3}), zeros({3, 5}));
       },
       {"[matmul]", "two axes", "(3,)"}},
      {[] {
         matmul(zeros({2, 2, 3}), zeros({3, 3, 5}));
       },
       {"[matmul]", "broadcast"}},
      {[] {
         matmul(zeros({2, 3}), zeros({3, 5}, f64));
       },
       {"[matmul]", "float32 and float64"}},
      {[] {
         matmul(zeros({2, 3}, i64), zeros({3, 5}, i64));
       },
       {"[matmul]", "int64"}},
      {[] {
         linear(zeros({2, 3}), zeros({3, 4}));
       },
       {"[matmul]", "3 and 4"}},
      {[] {
         linear(zeros({2, 3}), zeros({4, 3}), zeros({3}));
       },
       {"[matmul]", "bias", "(4,)"}},
      {[] {
         linear(zeros({2, 3}), zeros({4, 3}), zeros({4}, f64));
       },
       {"[matmul]", "float32 and float64"}},
  });
}

// --- Found only by running

TEST(Errors, BadIndicesNameThePlace) {
  const PathScope path("wte");
  const Tensor x = zeros({2, 3}), index = Tensor::from(std::vector<std::int64_t>{0, -1}, {2, 1});
  const Tensor picked = gather(x, 1, index);
  Program program({.inputs = {}, .outputs = {picked}, .updates = {}});
  for (int again = 0; again < 2; ++again)  // the fault does not stick
    expect_error([&] { program.run(); }, {"[gather]", "wte", "index -1", "position 1", "[0, 3)"});
  expect_error(
      [&] {
        eval(scatter_add(x, 1, index, zeros({2, 1})));
      },
      {"[scatter_add]", "wte", "index -1"});
}

// --- Programs

TEST(Errors, Compile) {
  const PathScope path("fc");
  const Tensor x = input({{2}, f32}, "tokens");
  const Variable w(zeros({2, 3}));
  expect_error([&] { Program({.inputs = {}, .outputs = {exp(x)}, .updates = {}}); },
               {"[compile]", "\"tokens\""});
  expect_error([&] { eval(exp(x)); }, {"[compile]", "\"tokens\""});
  expect_error([&] { Program({.inputs = {zeros({2})}, .outputs = {}, .updates = {}}); },
               {"[compile]", "input()"});
  expect_error([&] { Program({.inputs = {none}, .outputs = {}, .updates = {}}); },
               {"[compile]", "input()"});
  expect_error(
      [&] {
        Program({.inputs = {x, x}, .outputs = {}, .updates = {}});
      },
      {"[compile]", "\"tokens\"", "twice"});
  expect_error(
      [&] {
        Program({.inputs = {}, .outputs = {zeros({1}), none}, .updates = {}});
      },
      {"[compile]", "output 1", "empty"});
  expect_error([&] { eval(none); }, {"[compile]", "output 0", "empty"});
  expect_error(
      [&] {
        Program({.inputs = {}, .outputs = {}, .updates = {{w, none}}});
      },
      {"[compile]", "update 0", "empty value"});
  expect_error(
      [&] {
        Program({.inputs = {}, .outputs = {}, .updates = {{Variable{}, x}}});
      },
      {"[compile]", "update 0", "empty target"});
  expect_error(
      [&] {
        Program({.inputs = {}, .outputs = {}, .updates = {{w, zeros({3, 2})}}});
      },
      {"[compile]", "\"fc\"", "float32 (2, 3)", "float32 (3, 2)"});
  expect_error(
      [&] {
        Program({.inputs = {}, .outputs = {}, .updates = {{w, zeros({2, 3}, f64)}}});
      },
      {"[compile]", "\"fc\"", "float64 (2, 3)"});
  expect_error([&] { eval(ones({2}, f32, device::cuda(1))); }, {"cuda:1"});
  expect_error([&] { add(ones({2}), ones({2}, f32, device::cuda(0))); },
               {"[add]", "fc", "cpu", "cuda:0"});
}

TEST(Errors, Run) {
  const Tensor x = input({{2}, f32}, "tokens");
  Program program({.inputs = {x}, .outputs = {exp(x)}, .updates = {}});
  expect_error([&] { program.run(); }, {"[run]", "input 0", "\"tokens\"", "not fed"});
  expect_error([&] { program.run({x, x}); }, {"[run]", "1 inputs", "2 came"});
  expect_error([&] { program.feed(1, 2.0); }, {"[feed]", "1 inputs", "input 1"});
  expect_error([&] { program.run({eval(zeros({3}))}); },
               {"[feed]", "input 0", "\"tokens\"", "float32 (2,)", "float32 (3,)"});
  expect_error([&] { program.run({eval(zeros({2}, f64))}); }, {"[feed]", "float64 (2,)"});
  expect_error([&] { program.run({none}); }, {"[feed]", "\"tokens\"", "empty"});
  expect_error([&] { program.run({zeros({2})}); }, {"[feed]", "input 0", "eval()"});
  expect_error([&] { program.output(0); }, {"[output]", "has not run"});
  program.run({eval(zeros({2}))});
  EXPECT_EQ(values_of(program.output(0)), (std::vector<double>{1.0, 1.0}));
  expect_error([&] { program.output(1); }, {"[output]", "1 outputs", "number 1"});
  expect_error([&] { program.output(-1); }, {"[output]", "-1"});
}

// --- Derivatives

TEST(Errors, Derivatives) {
  const Tensor x = zeros({2}), y = exp(x), i = zeros({2}, i64);
  const std::vector<Tensor> wrt{x}, outputs{y}, short_list{}, wrong{zeros({3})};
  expect_error([&] { grad(y, {x}); }, {"[grad]", "float32 (2,)"});
  expect_error([&] { grad(none, {x}); }, {"[grad]", "empty"});
  expect_error([&] { grad(sum(i), {x}); }, {"[grad]", "int64 ()"});
  expect_error([&] { grad(sum(y), {i}); }, {"[vjp]", "int64 (2,)"});
  expect_error([&] { grad(sum(y), {none}); }, {"[vjp]", "empty"});
  expect_error([&] { vjp(outputs, short_list, wrt); }, {"[vjp]", "1 outputs", "0 came"});
  expect_error([&] { vjp(outputs, wrong, wrt); }, {"[vjp]", "cotangent 0", "(2,)", "(3,)"});
  const std::vector<Tensor> empty{none};
  expect_error([&] { vjp(empty, outputs, wrt); }, {"[vjp]", "output 0", "empty"});
  expect_error([&] { hessian_vector_product(sum(y), wrt, wrong); }, {"[vjp]", "(3,)"});
}

// --- Values

TEST(Errors, Values) {
  const PathScope path("fc");
  Variable w(zeros({2, 3}));
  expect_error(
      [&] {
        w.assign(zeros({3, 2}));
      },
      {"[assign]", "\"fc\"", "float32 (2, 3)", "float32 (3, 2)"});
  expect_error([&] { w.assign(zeros({2, 3}, f64)); }, {"[assign]", "\"fc\"", "float64 (2, 3)"});
  expect_error([&] { w.assign(none); }, {"[assign]", "\"fc\"", "empty"});
  expect_error([&] { Variable{}.assign(zeros({1})); }, {"empty"});
  expect_error([] { zeros({2}).to_vector<double>(); }, {"[to_vector]", "float32", "float64"});
  expect_error([] { zeros({2}, b8).to_vector<float>(); }, {"[to_vector]", "bool", "float32"});
  expect_error([] { zeros({2}).item(); }, {"[item]", "one element", "float32 (2,)"});
  expect_error([] { zeros({0}).item(); }, {"[item]", "float32 (0,)"});
}

TEST(Errors, TextAndSettings) {
  for (const char* text : {"", "float", "Float32", "f32", "float32 "})
    expect_error([&] { parse_dtype(text); }, {std::string("'") + text + "'", "bfloat16"});
  for (DType dtype : all_dtypes) EXPECT_EQ(parse_dtype(name(dtype)), dtype);
  const int before = threads();
  for (int count : {0, -3}) {
    expect_error([&] { set_threads(count); }, {"threads", "at least 1", std::to_string(count)});
    EXPECT_EQ(threads(), before);
  }
  expect_error([] { Storage::allocate(device::cuda(2), 64_B); }, {"cuda:2"});
  expect_error([] { Storage::allocate(device::cpu, {1ll << 60}); }, {"cannot allocate", "PiB"});
}

}  // namespace
}  // namespace ebb::test
