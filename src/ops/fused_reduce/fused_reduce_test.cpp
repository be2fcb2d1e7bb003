// Reductions that evaluate their elements: the same bits as the two ops, and no tensor between
// them.
#include "ops/fused_reduce/fused_reduce.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "passes/passes.h"
#include "support/op_check.h"
#include "support/other_device.h"
#include "support/plan_check.h"

namespace ebb::test {
namespace {

using Tensors = std::vector<Tensor>;

int count_of(const Graph& graph, std::string_view op) {
  const auto order = topological_order(graph);
  return static_cast<int>(std::count_if(order.begin(), order.end(),
                                        [&](const auto& node) { return node->op().name() == op; }));
}
int fused_reductions(const Tensors& outputs) {
  return count_of(fuse_pointwise({.inputs = {}, .outputs = outputs, .updates = {}}),
                  "fused_reduce");
}

Tensor random(const Shape& shape, DType dtype, std::uint64_t seed = 3) {
  return make_input(SampleInput::real(shape), dtype, seed);
}

std::vector<double> run(const Tensors& outputs, bool fuse) {
  Program program({.inputs = {}, .outputs = outputs, .updates = {}},
                  {.plan = {}, .passes = fuse ? all_pass_names() : required_passes(), .seed = 9});
  check_plan(program.plan());
  program.run();
  std::vector<double> all;
  for (int i = 0; i < static_cast<int>(outputs.size()); ++i)
    for (double value : values_of(program.output(i))) all.push_back(value);
  return all;
}

Tensors all_kinds(const Tensor& x, const Axes& axes) {
  return {sum(x * 1.0, axes), sum_squares(x * 1.0, axes), max(x * 1.0, axes), min(x * 1.0, axes)};
}

// Rows and columns shorter and longer than a tile, several bands, runs and slices, and elements in
// separate pieces.
struct Case {
  Shape shape;
  Axes axes;
};
const Case cases[] = {{{7}, {}},
                      {{512}, {}},
                      {{5000}, {}},
                      {{300, 700}, {}},
                      {{400, 3}, {1}},
                      {{40, 300}, {1}},
                      {{40, 600}, {1}},
                      {{30, 5000}, {1}},
                      {{3, 100000}, {1}},
                      {{300, 5}, {0}},
                      {{300, 64}, {0}},
                      {{90, 300}, {0}},
                      {{90, 768}, {0}},
                      {{70, 1100}, {0}},
                      {{3000, 100}, {0}},
                      {{20, 300, 24}, {1}},
                      {{9, 8, 300}, {0, 1}},
                      {{9, 8, 300}, {0, 2}},
                      {{9, 300, 8}, {1, 2}},
                      {{6, 70, 5, 300}, {0, 2}},
                      {{1, 1}, {0}},
                      {{2, 1, 3}, {1}},
                      {{}, {}}};

TEST(FusedReduce, ChangesNoBit) {
  for (const Case& c : cases)
    for (DType dtype : {f32, f64, f16, bf16, i32, i64, u8}) {
      SCOPED_TRACE(to_string(c.shape) + " over " + to_string(c.axes) + " in " +
                   std::string(name(dtype)));
      const Tensor x = make_input({c.shape, dtype, is_floating(dtype) ? -1.5 : 0.0, 9.0}, dtype, 5);
      const Tensors outputs = all_kinds(x, c.axes);
      EXPECT_EQ(fused_reductions(outputs), 4);
      EXPECT_EQ(run(outputs, true), run(outputs, false));
    }
}

// The result of a function for an element must not depend on the element's place in a tile.
TEST(FusedReduce, ChangesNoBitOfAnyFunction) {
  for (const Op* op : pointwise_ops())
    for (DType dtype : {f32, f64, bf16}) {
      SCOPED_TRACE(std::string(op->name()) + " in " + std::string(name(dtype)));
      const Shape shape{61, 37};
      Tensors operands;
      for (int i = 0; i < op->pointwise()->arity; ++i) {
        const bool boolean = op->name().starts_with("logical") || (op->name() == "where" && i == 0);
        operands.push_back(
            make_input(boolean ? SampleInput::boolean(shape) : SampleInput::real(shape, 0.1, 1.4),
                       dtype, 20 + static_cast<std::uint64_t>(i)));
      }
      Tensor y = apply1(*op, operands);
      if (y.dtype() == b8) y = cast(y, dtype);
      const Tensors outputs{sum(y, {1}), sum(reshape(y, {37, 61}), {1}), sum(y, {0}), sum(y)};
      EXPECT_EQ(run(outputs, true), run(outputs, false));
      for (const Tensor& output : outputs) EXPECT_EQ(run({output}, true), run({output}, false));
    }
}

TEST(FusedReduce, ChangesNoBitOfPrograms) {
  for (DType dtype : {f32, f64, f16, bf16}) {
    const Tensor x = random({60, 40, 33}, dtype), y = random({40, 33}, dtype, 7),
                 z = random({60, 1, 1}, dtype, 8), t = random({33, 40, 60}, dtype, 9);
    const Tensors programs{
        square(x - y),
        dropout(x, 0.3) * z,
        x * permute(t, {2, 1, 0}),
        exp(slice(x, 2, 0, 32)) + slice(x, 2, 1, 33),
        abs(x) * 0.5 + cast(cast(y, f64), dtype),
        cast(x, f64) * 2.0,
        random_normal({60, 40, 33}, 0.0, 1.0, dtype),
    };
    for (std::size_t i = 0; i < programs.size(); ++i)
      for (const Axes& axes : {Axes{}, Axes{0}, Axes{0, 1}, Axes{1, 2}, Axes{2}, Axes{1}}) {
        SCOPED_TRACE("program " + std::to_string(i) + " over " + to_string(axes) + " in " +
                     std::string(name(dtype)));
        const Tensors outputs{sum(programs[i], axes)};
        EXPECT_EQ(fused_reductions(outputs), 1);
        EXPECT_EQ(run(outputs, true), run(outputs, false));
      }
  }
}

TEST(FusedReduce, DoesNotDependOnThreads) {
  const Tensor x = random({700, 300}, f32);
  const Tensors outputs{sum(square(x)), sum(exp(x), {0}), sum(tanh(x), {1})};
  const int before = threads();
  set_threads(1);
  const auto one = run(outputs, true);
  set_threads(3);
  EXPECT_EQ(run(outputs, true), one);
  set_threads(before);
}

TEST(FusedReduce, Samples) {
  const Shape shape{3, 4, 5};
  const auto two = [&] { return std::vector{SampleInput::real(shape), SampleInput::real({4, 5})}; };
  check({"square error", two(), [](const auto& x) {
           return Tensors{mean(square(x[0] - x[1])), sum(square(x[0] - x[1]), {0, 1})};
         }});
  check({"scale and bias", two(), [](const auto& x) {
           return Tensors{sum(x[0] * x[1], {2}), sum(gelu(x[0]) + x[1], {0}, Keep::yes),
                          sum_squares(x[0] + x[1], {1})};
         }});
  check({"extremes", two(), [](const auto& x) {
           return Tensors{max(abs(x[0]), {1, 2}), min(x[0] * x[1], {0, 2}), max(x[0] + x[1])};
         }});
  check({"through reshapes", two(), [](const auto& x) {
           return Tensors{sum(reshape(x[0] * x[1], {12, 5}), {0}),
                          sum(flatten(sin(x[0])), {0}, Keep::yes)};
         }});
  check({"dropout", {SampleInput::real({6, 8})}, [](const auto& x) {
           return Tensors{sum(dropout(x[0], 0.25, RandomKey{7}), {0})};
         }});
}

// --- Which ops are fused

TEST(FusedReduce, TheEvaluatedTensorDoesNotExist) {
  const int before = threads();
  set_threads(2);  // each has a tile of its own
  const Tensor x = random({256, 1024}, f32), y = random({256, 1024}, f32, 4);
  for (const Tensor& loss : {mean(square(x - y)), sum(reshape(x * y, {16, 16, 1024}), {0, 1})}) {
    const Program program({.inputs = {}, .outputs = {loss}, .updates = {}});
    check_plan(program.plan());
    // Tiles and slices alone.
    for (const Buffer& buffer : program.plan().buffers)
      EXPECT_TRUE(!buffer.in_arena() || buffer.size.count <= x.type().bytes().count / 16);
  }
  set_threads(before);
}

TEST(FusedReduce, ReadersOfTheElementsKeepThem) {
  const Tensor x = random({8, 16}, f32), y = exp(x);
  EXPECT_EQ(fused_reductions({sum(y)}), 1);
  EXPECT_EQ(fused_reductions({sum(y), y}), 0);
  EXPECT_EQ(fused_reductions({sum(y), max(y)}), 0);
  EXPECT_EQ(fused_reductions({sum(reshape(y, {128})), transpose(y, 0, 1)}), 0);
  const Tensor flat = reshape(y, {128});
  EXPECT_EQ(fused_reductions({sum(flat), flat}), 0);
  EXPECT_EQ(fused_reductions({sum(transpose(y, 0, 1), {0})}), 0);
  EXPECT_EQ(fused_reductions({sum(x)}), 0);  // nothing to evaluate
  // Generators are made again by every reader.
  const Tensor mask = random_uniform({8, 16}, 0.0, 1.0, f32);
  EXPECT_EQ(fused_reductions({sum(mask), max(mask)}), 2);
}

TEST(FusedReduce, GradientsStayVisible) {
  const Tensor x = random({8, 16}, f32), g = exp(x);
  g.node()->set_category(Category::gradients);
  EXPECT_EQ(fused_reductions({sum_squares(g)}), 0);
}

int on_cuda(const Tensor& output) {
  return count_of(fuse_pointwise(OtherDevice(device::cuda(0), OtherDevice::Constants::inputs)(
                      Graph{.inputs = {}, .outputs = {output}, .updates = {}})),
                  "fused_reduce");
}

// Short, scattered pieces would leave the CPU's tiles mostly empty; a GPU has no tiles.
TEST(FusedReduce, ShortPiecesStayApartOnTheCpu) {
  const Tensor y = exp(random({20, 30, 7}, f32));
  EXPECT_EQ(fused_reductions({sum(y, {0, 2})}), 0);
  EXPECT_EQ(on_cuda(sum(y, {0, 2})), 1);
  EXPECT_EQ(fused_reductions({sum(y, {1})}), 1);
  EXPECT_EQ(fused_reductions({sum(exp(random({4, 6, 300}, f32)), {0, 2})}), 1);
}

TEST(FusedReduce, ManyShortRowsStayApartOnCuda) {
  const Tensor thin = exp(full({20000, 8}, 0.5)), wide = exp(full({2000, 80}, 0.5));
  EXPECT_EQ(on_cuda(sum(thin, {0})), 0);
  EXPECT_EQ(on_cuda(sum(thin, {1})), 0);
  EXPECT_EQ(on_cuda(sum(thin)), 1);
  EXPECT_EQ(on_cuda(sum(wide, {0})), 1);
  EXPECT_EQ(on_cuda(sum(wide, {1})), 0);
  EXPECT_EQ(fused_reductions({sum(thin, {0})}), 1);
}

// --- The op by itself

FusedReduceAttributes square_sum(const Shape& shape, const Axes& axes) {
  return {.program = {.input_dtypes = {f32},
                      .code = {{pointwise_op("square").pointwise(), {0}, f32, {}}},
                      .shape = shape},
          .shape = shape,
          .kind = ReduceKind::sum,
          .reduce = {axes, false}};
}

TEST(FusedReduce, AgreesWithItsReference) {
  const Tensor x = random({4, 6}, f32);
  for (ReduceKind kind :
       {ReduceKind::sum, ReduceKind::sum_squares, ReduceKind::max, ReduceKind::min}) {
    FusedReduceAttributes a = square_sum({4, 6}, {1});
    a.kind = kind, a.shape = {8, 3};
    const Tensor y = apply1(fused_reduce_op(), {x}, a);
    const Tensors reference = fused_reduce_op().reference(std::span(&x, 1), a);
    EXPECT_EQ(y.type(), reference[0].type());
    EXPECT_EQ(values_of(y), values_of(reference[0]));
    EXPECT_EQ(values_of(grad(sum(y), {x})[0]), values_of(grad(sum(reference[0]), {x})[0]));
  }
}

TEST(FusedReduce, CostsBothButMovesNoElements) {
  const Tensor x = random({64, 64}, f32);
  const FusedReduceAttributes a = square_sum({64, 64}, {0});
  const TensorType in[] = {x.type()}, out[] = {{{64}, f32}};
  const Cost cost = fused_reduce_op().cost(in, out, a);
  EXPECT_EQ(cost.moved, (Bytes{(64 * 64 + 64) * 4}));
  EXPECT_EQ(cost.flops, fused_op().cost(in, in, a.program).flops +
                            reduce_op(a.kind).cost(in, out, a.reduce).flops);
}

TEST(FusedReduce, Errors) {
  const Tensor x = random({4, 6}, f32);
  const auto make = [](const Tensors& inputs, const FusedReduceAttributes& a) {
    return apply1(fused_reduce_op(), inputs, a);
  };
  expect_error(
      [&] {
        make({x, x}, square_sum({4, 6}, {1}));
      },
      {"[fused_reduce]", "takes 1 inputs"});
  expect_error([&] { make({x}, square_sum({5, 6}, {1})); }, {"[fused_reduce]", "broadcast to"});
  expect_error([&] { make({x}, square_sum({4, 6}, {2})); }, {"[sum]", "axis 2"});
  FusedReduceAttributes other = square_sum({4, 6}, {1});
  other.shape = {5, 5};
  expect_error([&] { make({x}, other); }, {"[fused_reduce]", "cannot be reduced as (5, 5)"});
}

}  // namespace
}  // namespace ebb::test
