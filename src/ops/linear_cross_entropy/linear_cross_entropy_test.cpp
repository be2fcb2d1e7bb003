#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include <gtest/gtest.h>

#include <tuple>

#include "ops/loss/loss.h"
#include "support/op_check.h"

namespace ebb {}  // namespace ebb

namespace ebb::test {
namespace {

SampleInput targets_of(Shape shape, std::vector<double> values, DType dtype = i64) {
  SampleInput input = SampleInput::index(shape, 0, dtype);
  input.values = std::move(values);
  return input;
}

TEST(LinearCrossEntropy, Gradients) {
  for (Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum})
    for (std::int64_t chunk : {0, 1, 2, 5, 8})
      check({"linear_cross_entropy",
             {SampleInput::real({5, 4}), SampleInput::real({7, 4}),
              targets_of({5}, {0, 6, -100, 3, 3}, chunk == 0 ? i32 : i64)},
             [=](const auto& x) {
               return std::vector{linear_cross_entropy(x[0], x[1], x[2],
                                                       {.reduction = reduction,
                                                        .label_smoothing = chunk == 2 ? 0.2 : 0.0,
                                                        .chunk = chunk})};
             }});
  check(
      {"leading axes, one feature",
       {SampleInput::real({2, 2, 1}), SampleInput::real({3, 1}), targets_of({2, 2}, {0, 1, 2, 1})},
       [](const auto& x) { return std::vector{linear_cross_entropy(x[0], x[1], x[2])}; }});
}

TEST(LinearCrossEntropy, GradientThroughTheLogsumexp) {
  check({"both outputs",
         {SampleInput::real({3, 2}), SampleInput::real({4, 2}), targets_of({3}, {1, -100, 3})},
         [](const auto& x) {
           const auto outputs = apply(linear_cross_entropy_op(), {x[0], x[1], x[2]},
                                      LinearCrossEntropyAttributes{{}, 2});
           return std::vector{outputs[0], cast(outputs[1], x[0].dtype())};
         }});
}

TEST(LinearCrossEntropy, OnlyTheGradientAskedFor) {
  const SampleInput targets = targets_of({3}, {1, 0, 3});
  const auto function = [](const auto& x) {
    return std::vector{linear_cross_entropy(x[0], x[1], x[2], {.chunk = 2})};
  };
  check({"frozen weight",
         {SampleInput::real({3, 2}), SampleInput::fixed({4, 2}, -1.0, 1.0), targets},
         function});
  check({"frozen input",
         {SampleInput::fixed({3, 2}, -1.0, 1.0), SampleInput::real({4, 2}), targets},
         function});
}

struct Case {
  Tensor x, weight, targets;
  Case(std::int64_t rows, std::int64_t classes, std::int64_t features, DType dtype)
      : x(make_input(SampleInput::real({rows, features}), dtype, 1)),
        weight(make_input(SampleInput::real({classes, features}), dtype, 2)),
        targets(make_input(SampleInput::index({rows}, classes), dtype, 3)) {}

  // The loss, then its gradients in x and the weight.
  std::vector<Tensor> with_gradients(const Tensor& loss) const {
    std::vector<Tensor> results = grad(loss, {x, weight});
    results.insert(results.begin(), loss);
    return results;
  }
};

void expect_near(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected,
                 double tolerance) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto a = values_of(actual[i]), b = values_of(expected[i]);
    ASSERT_EQ(a.size(), b.size());
    double scale = 0.0, worst = 0.0;
    for (std::size_t k = 0; k < a.size(); ++k)
      scale = std::max(scale, std::abs(b[k])), worst = std::max(worst, std::abs(a[k] - b[k]));
    EXPECT_LE(worst, tolerance * scale) << "result " << i;
  }
}

TEST(LinearCrossEntropy, EqualsCrossEntropyOfLinear) {
  const Case c(96, 300, 24, f64);
  for (double smoothing : {0.0, 0.1}) {
    const auto expected = c.with_gradients(
        cross_entropy(linear(c.x, c.weight), c.targets, {.label_smoothing = smoothing}));
    for (std::int64_t chunk : {32, 96, 7, 50, 1000, 0})
      expect_near(c.with_gradients(linear_cross_entropy(
                      c.x, c.weight, c.targets, {.label_smoothing = smoothing, .chunk = chunk})),
                  expected, 1e-12);  // float64, sums of hundreds of terms
  }
}

TEST(LinearCrossEntropy, HalfTypesInSeveralBlocks) {
  // 2^20 / 8192 = 128 classes fill a block: three blocks, the last one short.
  const Case c(6, 300, 8192, bf16);
  const auto widened = [](const Tensor& t) { return eval(cast(t, f64)); };
  const Tensor x = eval(c.x * 0.05), weight = c.weight;
  Case low = c, high = c;
  low.x = x, high.x = widened(x), high.weight = widened(weight);
  // One rounding of each result to bfloat16, half a unit being 2^-9; the losses' mean and its
  // gradient round once more.
  expect_near(
      low.with_gradients(linear_cross_entropy(low.x, low.weight, low.targets, {.chunk = 4})),
      high.with_gradients(linear_cross_entropy(high.x, high.weight, high.targets)), 0x1p-7);
}

int count_of(const Plan& plan, std::string_view op) {
  return static_cast<int>(std::count_if(plan.instructions.begin(), plan.instructions.end(),
                                        [&](const Instruction& i) { return i.op->name() == op; }));
}

TEST(LinearCrossEntropy, JoinsForwardAndBackwardToTheBit) {
  for (DType dtype : {f32, f64})
    for (Reduction reduction : {Reduction::mean, Reduction::sum})
      for (std::int64_t chunk : {0, 7, 32}) {
        const Case c(40, 300, 24, dtype);
        const Graph graph{
            {},
            c.with_gradients(linear_cross_entropy(c.x, c.weight, c.targets,
                                                  {.reduction = reduction,
                                                   .ignore_index = 3,
                                                   .label_smoothing = chunk == 7 ? 0.1 : 0.0,
                                                   .chunk = chunk})),
            {}};
        Program joint(graph), apart(graph, CompileOptions{.passes = required_passes()});
        EXPECT_EQ(count_of(joint.plan(), "linear_cross_entropy_joint"), 1);
        EXPECT_EQ(count_of(joint.plan(), "linear_cross_entropy"), 0);
        EXPECT_EQ(count_of(apart.plan(), "linear_cross_entropy_grad"), 1);
        joint.run(), apart.run();
        for (int i = 0; i < 3; ++i)
          EXPECT_EQ(values_of(joint.output(i)), values_of(apart.output(i))) << "result " << i;
      }
}

TEST(LinearCrossEntropy, JointValues) {
  for (const auto& [x_needed, weight_needed, walks, chunk] : {std::tuple{true, true, 2, 2},
                                                              {true, false, 2, 2},
                                                              {false, true, 2, 2},
                                                              {false, false, 2, 2},
                                                              {true, true, 1, 2},
                                                              {true, true, 1, 0},
                                                              {true, false, 1, 2},
                                                              {false, true, 1, 0}})
    check({"linear_cross_entropy_joint",
           {SampleInput::fixed({5, 4}, -1.0, 1.0), SampleInput::fixed({7, 4}, -1.0, 1.0),
            targets_of({5}, {0, 6, -100, 3, 3}), SampleInput::fixed({5}, -1.0, 1.0)},
           [=, x_needed = x_needed, weight_needed = weight_needed, walks = walks,
            chunk = chunk](const auto& x) {
             return apply(
                 linear_cross_entropy_joint_op(),
                 {x[0], x[1], x[2], cast(x[3], statistics_dtype(x[0].dtype()))},
                 LinearCrossEntropyJointAttributes{{{{}, chunk}, x_needed, weight_needed}, walks});
           }});
}

// Several tiles of rows, and classes that fill no whole packs.
TEST(LinearCrossEntropy, JointValuesInParts) {
  std::vector<double> targets(70);
  for (std::size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<double>(i * 11 % 131);
  for (int walks : {1, 2})
    check({"linear_cross_entropy_joint",
           {SampleInput::fixed({70, 16}, -1.0, 1.0), SampleInput::fixed({131, 16}, -1.0, 1.0),
            targets_of({70}, targets), SampleInput::fixed({70}, -1.0, 1.0)},
           [=](const auto& x) {
             return apply(linear_cross_entropy_joint_op(),
                          {x[0], x[1], x[2], cast(x[3], statistics_dtype(x[0].dtype()))},
                          LinearCrossEntropyJointAttributes{{{{}, 32}, true, true}, walks});
           }});
}

TEST(LinearCrossEntropy, StaysApartWhereTheGradientWaitsForTheLoss) {
  const Case c(6, 9, 4, f64);
  const Tensor loss = linear_cross_entropy(c.x, c.weight, c.targets);
  const auto joint = [&](const std::vector<Tensor>& outputs) {
    return count_of(Program({{}, outputs, {}}).plan(), "linear_cross_entropy_joint");
  };
  EXPECT_EQ(joint(c.with_gradients(loss)), 1);
  EXPECT_EQ(joint(c.with_gradients(loss * loss)), 0);
  EXPECT_EQ(joint({loss}), 0);
  // Two backward passes over one forward.
  std::vector<Tensor> twice = c.with_gradients(loss);
  twice.push_back(grad(loss * 2.0, {c.x})[0]);
  EXPECT_EQ(joint(twice), 0);
}

TEST(LinearCrossEntropy, NeverHoldsTheLogits) {
  const std::int64_t rows = 4096, classes = 8192, features = 64, logits = rows * classes * 4;
  const Tensor x = input({{rows, features}, f32}, "x"), w = input({{classes, features}, f32}, "w"),
               t = input({{rows}, i64}, "t");
  const auto peak = [&](const Tensor& loss) {
    std::vector<Tensor> outputs = grad(loss, {x, w});
    outputs.push_back(loss);
    const Program program({.inputs = {x, w, t}, .outputs = outputs, .updates = {}});
    return program.plan().peak.count;
  };
  EXPECT_GT(peak(cross_entropy(linear(x, w), t)), logits);
  EXPECT_LT(peak(linear_cross_entropy(x, w, t)), logits * 2 / 5);
  EXPECT_LT(peak(linear_cross_entropy(x, w, t, {.chunk = 64})), logits / 10);
}

TEST(LinearCrossEntropy, NoRows) {
  const Tensor x = zeros({0, 2}), w = ones({3, 2}), t = zeros({0}, i64);
  const Tensor loss = linear_cross_entropy(x, w, t, {.reduction = Reduction::sum});
  EXPECT_EQ(loss.item(), 0.0);
  EXPECT_EQ(grad(loss, {w})[0].to_vector<float>(), std::vector<float>(6, 0.0f));
}

TEST(LinearCrossEntropy, BadTargetsAreReportedWhenRun) {
  const Tensor x = zeros({3, 2}), w = zeros({4, 2});
  for (std::int64_t bad : {std::int64_t{4}, std::int64_t{-1}}) {
    const Tensor t = Tensor::from(std::vector<std::int64_t>{0, 3, bad}, {3});
    const std::string index = "index " + std::to_string(bad);
    expect_error([&] { eval(linear_cross_entropy(x, w, t, {.chunk = 2})); },
                 {"[linear_cross_entropy]", index, "position 2", "[0, 4)"});
    const auto direct = apply(linear_cross_entropy_grad_op(), {x, w, t, zeros({3}), ones({3})},
                              LinearCrossEntropyGradAttributes{{{}, 2}, true, true});
    expect_error([&] { eval(direct); },
                 {"[linear_cross_entropy_grad]", index, "position 2", "[0, 4)"});
  }
}

TEST(LinearCrossEntropy, Errors) {
  const Tensor x = zeros({2, 3}), w = zeros({4, 3}), t = zeros({2}, i64);
  expect_error(
      [&] {
        linear_cross_entropy(x, zeros({4, 2}), t);
      },
      {"[linear_cross_entropy]", "(classes, 3)"});
  expect_error(
      [&] {
        linear_cross_entropy(x, zeros({4, 3}, f64), t);
      },
      {"[linear_cross_entropy]", "float32 and float64"});
  expect_error([&] { linear_cross_entropy(x, zeros({}), t); },
               {"[linear_cross_entropy]", "rank 2"});
  expect_error([&] { linear_cross_entropy(x, w, zeros({3}, i64)); },
               {"[linear_cross_entropy]", "(3,)", "(2, 3)"});
  expect_error([&] { linear_cross_entropy(x, w, t, {.chunk = -1}); },
               {"[linear_cross_entropy]", "chunk", "-1"});
  expect_error(
      [&] {
        linear_cross_entropy(zeros({2, 0}), zeros({4, 0}), t);
      },
      {"[linear_cross_entropy]", "at least one feature"});
  const auto backward = [&](const Tensor& lse, const Tensor& g) {
    apply(linear_cross_entropy_grad_op(), {x, w, t, lse, g}, LinearCrossEntropyGradAttributes{});
  };
  expect_error([&] { backward(zeros({3}), zeros({2})); },
               {"[linear_cross_entropy_grad]", "logsumexp"});
  expect_error([&] { backward(zeros({2}), zeros({1})); },
               {"[linear_cross_entropy_grad]", "gradient"});
}

}  // namespace
}  // namespace ebb::test
