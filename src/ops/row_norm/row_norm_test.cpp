#include "ops/row_norm/row_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/op_check.h"

namespace ebb::test {
namespace {

// Half types round the gradients of weight and bias after sums of rows whose parts cancel.
constexpr double half_factor = 8.0;

Sample with_half_factor(Sample sample) {
  sample.half_tolerance_factor = half_factor;
  return sample;
}

TEST(RowNorm, LayerNorm) {
  const SampleInput x = SampleInput::real({2, 3, 5}), c = SampleInput::real({5});
  check(with_half_factor({"weight and bias", {x, c, c}, [](const auto& t) {
                            return std::vector{layer_norm(t[0], t[1], t[2])};
                          }}));
  check(with_half_factor(
      {"weight", {x, c}, [](const auto& t) { return std::vector{layer_norm(t[0], t[1], {})}; }}));
  check(with_half_factor(
      {"bias", {x, c}, [](const auto& t) { return std::vector{layer_norm(t[0], {}, t[1])}; }}));
  check(with_half_factor(
      {"plain", {x}, [](const auto& t) { return std::vector{layer_norm(t[0], {}, {}, 1e-3)}; }}));
}

TEST(RowNorm, RmsNorm) {
  const SampleInput x = SampleInput::real({2, 3, 5}), c = SampleInput::real({5});
  check(with_half_factor(
      {"rms weight", {x, c}, [](const auto& t) { return std::vector{rms_norm(t[0], t[1])}; }}));
  check(with_half_factor(
      {"rms plain", {x}, [](const auto& t) { return std::vector{rms_norm(t[0], {}, 1e-3)}; }}));
}

// The backward op by itself, with another gradient of x that it adds. The statistics it is given
// are those of x.
TEST(RowNorm, GradientsWithAnotherAdded) {
  const SampleInput x = SampleInput::real({2, 3, 5}), c = SampleInput::real({5});
  const auto rstd = [](const Tensor& rows) {
    const Tensor wide = cast(rows, rows.dtype() == f64 ? f64 : f32);
    return rsqrt(mean(square(wide), {-1}) + 1e-5);
  };
  check(with_half_factor({"layer_norm_grad", {x, x, c, x}, [&](const auto& t) {
                            const Tensor wide = cast(t[0], t[0].dtype() == f64 ? f64 : f32);
                            const Tensor centre = mean(wide, {-1}, Keep::yes);
                            return apply(
                                layer_norm_grad_op(),
                                {t[0], t[1], squeeze(centre, -1), rstd(wide - centre), t[2], t[3]},
                                RowNormGradAttributes{1e-5, true, true, true, true, true});
                          }}));
  check(with_half_factor({"rms_norm_grad", {x, x, x}, [&](const auto& t) {
                            return apply(
                                rms_norm_grad_op(), {t[0], t[1], rstd(t[0]), t[2]},
                                RowNormGradAttributes{1e-5, false, false, false, true, true});
                          }}));
}

// What passes make of a residual: to the bit what the sum by itself gives, on every device.
TEST(RowNorm, Residuals) {
  const SampleInput x = SampleInput::real({2, 3, 8}), c = SampleInput::real({8});
  check(with_half_factor({"layer_norm", {x, c, c}, [](const auto& t) {
                            return std::vector{t[0] + tanh(layer_norm(t[0], t[1], t[2]))};
                          }}));
  check(with_half_factor({"rms_norm", {x, c}, [](const auto& t) {
                            return std::vector{t[0] + tanh(rms_norm(t[0], t[1]))};
                          }}));
}

TEST(RowNorm, GroupNorm) {
  const SampleInput c = SampleInput::real({6});
  for (std::int64_t groups : {1, 2, 3})
    check(with_half_factor(
        {std::to_string(groups) + " groups",
         {SampleInput::real({2, 6, 3}), c, c},
         [=](const auto& t) { return std::vector{group_norm(t[0], groups, t[1], t[2])}; }}));
  check(with_half_factor({"without weight or bias", {SampleInput::real({2, 6})}, [](const auto& t) {
                            return std::vector{group_norm(t[0], 2, {}, {})};
                          }}));
}

// Frozen parameters cost no gradients: the backward op then has one output and no workspace.
TEST(RowNorm, OnlyGradientsAskedForAreComputed) {
  const Tensor x = eval(random_normal({100, 8}, 0.0, 1.0)), c = eval(ones({8}));
  const auto workspace = [&](std::initializer_list<Tensor> wrt) {
    const Program program(
        {.inputs = {}, .outputs = grad(sum(square(layer_norm(x, c, c))), wrt), .updates = {}});
    const Plan& plan = program.plan();
    for (const Instruction& instruction : plan.instructions)
      if (instruction.op->name() == "layer_norm_grad")
        return instruction.workspace ? plan.buffers[instruction.workspace].size : Bytes{};
    return Bytes{-1};
  };
  EXPECT_EQ(workspace({x}).count, 0);
  EXPECT_EQ(workspace({x, c}).count, 3 * 2 * 8 * 4);  // slices × (weight, bias) × columns × float
}

// Many rows and long ones: slices, tiles and their rests, whatever the number of threads.
TEST(RowNorm, DoesNotDependOnThreads) {
  const Tensor x = eval(random_normal({131, 1101}, 3.0, 2.0)),
               g = eval(random_normal({131, 1101}, 0.0, 1.0)),
               w = eval(random_normal({1101}, 1.0, 0.1)), b = eval(random_normal({1101}, 0.0, 1.0));
  const auto run = [&](DType dtype) {
    const Tensor xs = cast(x, dtype), ws = cast(w, dtype), bs = cast(b, dtype);
    const Tensor y = layer_norm(xs, ws, bs);
    std::vector<Tensor> results = grad(sum(y * cast(g, dtype)), {xs, ws, bs});
    results.push_back(y);
    std::vector<std::vector<double>> values;
    for (const Tensor& result : eval(results)) values.push_back(values_of(result));
    return values;
  };
  const int before = threads();
  set_threads(1);
  const auto one = run(f32);
  set_threads(3);
  EXPECT_EQ(run(f32), one);
  set_threads(before);
  const auto exact = run(f64);
  for (std::size_t i = 0; i < exact.size(); ++i)
    for (std::size_t k = 0; k < exact[i].size(); ++k)
      EXPECT_NEAR(one[i][k], exact[i][k], 1e-4);  // sums of 131 terms of size 1 in float32
}

// Far from zero, with the mean subtracted before anything is squared.
TEST(RowNorm, KeepsSmallVariationsOfLargeValues) {
  std::vector<float> values;
  for (int i = 0; i < 64; ++i) values.push_back(10000.0f + static_cast<float>(i % 2));
  const auto y = layer_norm(Tensor::from(values, {1, 64}), {}, {}, 0.0).to_vector<float>();
  EXPECT_FLOAT_EQ(y[0], -1.0f);
  EXPECT_FLOAT_EQ(y[1], 1.0f);
}

TEST(RowNorm, Errors) {
  const Tensor x = zeros({2, 3});
  expect_error([&] { layer_norm(x, ones({2}), {}); }, {"[layer_norm]", "weight", "(3,)", "(2,)"});
  expect_error([&] { layer_norm(x, {}, ones({3, 1})); }, {"[layer_norm]", "bias", "(3,)"});
  expect_error([&] { layer_norm(x, ones({3}, f64), {}); }, {"[layer_norm]", "float32 and float64"});
  expect_error([&] { layer_norm(x, {}, {}, -1.0); }, {"[layer_norm]", "eps", "-1"});
  expect_error([&] { layer_norm(zeros({2, 0}), {}, {}); }, {"[layer_norm]", "no elements"});
  expect_error([&] { rms_norm(zeros({2, 3}, i32), {}); }, {"[rms_norm]", "floating-point"});
  expect_error([&] { rms_norm(zeros({}), {}); }, {"[rms_norm]", "one axis"});
  expect_error(
      [&] {
        apply(rms_norm_grad_op(), {x, x, zeros({2}), zeros({3})},
              RowNormGradAttributes{.added = true});
      },
      {"[rms_norm_grad]", "what is added must be", "(2, 3)"});
  expect_error([&] { group_norm(x, 2, {}, {}); }, {"3 channels", "2 equal groups"});
  expect_error([&] { group_norm(zeros({3}), 1, {}, {}); }, {"group_norm", "(N, C, ...)"});
  expect_error([&] { group_norm(x, 3, ones({2}), {}); }, {"group_norm", "weight", "(3,)"});
}

}  // namespace
}  // namespace ebb::test
