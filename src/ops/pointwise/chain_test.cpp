// Functions that hand their results on in registers: the bits of the functions one by one.
#include "ops/pointwise/chain.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "passes/passes.h"
#include "support/op_check.h"
#include "support/plan_check.h"

namespace ebb::test {
namespace {

using Tensors = std::vector<Tensor>;
using Program1 = Tensor (*)(const Tensors& x);

// A leaf: ordinary numbers with zeros of both signs, equal neighbours, infinities and NaN between
// them.
Tensor awkward(const Shape& shape, DType dtype, std::uint64_t seed) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  constexpr double special[] = {
      0.0, -0.0, 1.0, 1.0, -infinity, infinity, -1.0, std::numeric_limits<double>::quiet_NaN()};
  std::vector<double> values = values_of(make_input(SampleInput::real(shape), f64, seed));
  for (std::size_t i = seed; i < values.size(); i += 7) values[i] = special[(i / 7 + seed) % 8];
  return Variable(cast(Tensor::from(values, shape), dtype));
}

std::vector<std::uint64_t> bits_of(const Tensor& output, bool fused) {
  Program program({.inputs = {}, .outputs = {output}, .updates = {}},
                  {.plan = {}, .passes = fused ? all_pass_names() : required_passes(), .seed = 9});
  program.run();
  std::vector<std::uint64_t> bits;
  for (const double value : values_of(program.output(0)))  // a NaN is a NaN
    bits.push_back(value != value ? ~std::uint64_t{0} : std::bit_cast<std::uint64_t>(value));
  return bits;
}

const Program1 programs[] = {
    [](const Tensors& x) { return (x[0] + x[1]) * x[2]; },
    [](const Tensors& x) { return x[2] - x[0] * x[1]; },
    [](const Tensors& x) { return x[0] * x[1] - x[2]; },
    [](const Tensors& x) { return x[2] / (x[0] + x[1]); },
    [](const Tensors& x) { return (x[0] + x[1]) / x[2]; },
    [](const Tensors& x) { return maximum(x[0] * x[1], x[2]); },
    [](const Tensors& x) { return maximum(x[2], x[0] * x[1]); },
    [](const Tensors& x) { return minimum(x[0] * x[1], x[2]); },
    [](const Tensors& x) { return minimum(x[2], x[0] * x[1]); },
    [](const Tensors& x) { return neg(square(abs(x[0] - x[1]))); },
    [](const Tensors& x) { return reciprocal(relu(x[0] * x[1])); },
    [](const Tensors& x) { return clamp(x[0] * x[1], -0.5, 0.25) + x[2]; },
    [](const Tensors& x) { return where(equal(x[0], x[1]), x[2], x[0]) + x[1]; },
    [](const Tensors& x) { return where(not_equal(x[0], x[1]), x[2], x[0]); },
    [](const Tensors& x) { return where(less(x[0], x[1]), x[2], x[0]); },
    [](const Tensors& x) { return where(less_equal(x[0], scalar_like(x[0], 0.0)), x[1], x[2]); },
    [](const Tensors& x) { return where(greater(x[0], x[1]), x[2], x[0]); },
    [](const Tensors& x) { return where(greater_equal(x[0], x[1]), x[2] * x[0], x[1]); },
    // Masks that links cannot take: kept, computed from a chain, for other dtypes, twice read.
    [](const Tensors& x) { return less(x[0] * x[1], x[2]); },
    [](const Tensors& x) { return where(less(x[0] * x[1], x[2]), x[0], x[1]); },
    [](const Tensors& x) {
      return where(less(x[0], x[1]), cast(x[2], f64), cast(x[0], f64)) + cast(x[1], f64);
    },
    [](const Tensors& x) {
      const Tensor less_than = less(x[0], x[1]);
      return where(less_than, x[2], x[0]) * where(less_than, x[1], x[2]);
    },
    [](const Tensors& x) { return where(logical_not(less(x[0], x[1])), x[2], x[0]); },
    // Trees, values that are read twice, and functions without a link in between.
    [](const Tensors& x) { return x[0] * x[1] + x[1] * x[2]; },
    [](const Tensors& x) {
      const Tensor y = x[0] + x[1];
      return y * y - (y + x[2]) * y;
    },
    [](const Tensors& x) { return exp((x[0] + x[1]) * x[2]) * x[1] - x[0]; },
    [](const Tensors& x) {
      Tensor y = x[0];
      for (int i = 0; i < 15; ++i) y = y * x[1] + x[2];
      return y;
    },
};

TEST(Chains, ChangeNoBit) {
  const auto block = chain::block;
  for (const Shape& shape : {Shape{1}, Shape{block - 1}, Shape{block}, Shape{4 * block + 1},
                             Shape{3, 511}, Shape{90, 700}})
    for (const DType dtype : {f32, bf16}) {
      const Tensors same{awkward(shape, dtype, 1), awkward(shape, dtype, 2),
                         awkward(shape, dtype, 3)};
      const Tensors broadcast{awkward(shape, dtype, 1),
                              awkward({shape[shape.rank() - 1]}, dtype, 2), awkward({}, dtype, 3)};
      for (const Tensors& x : {same, broadcast})
        for (std::size_t i = 0; i < std::size(programs); ++i) {
          SCOPED_TRACE("program " + std::to_string(i) + " on " + to_string(same[0].type()));
          const Tensor y = programs[i](x);
          EXPECT_EQ(bits_of(y, true), bits_of(y, false));
        }
    }
}

// The results between have no register: the kernel needs no memory of its own.
TEST(Chains, KeepNothingInMemory) {
  const Shape shape{64, 1024};
  const Tensors x{awkward(shape, f32, 1), awkward(shape, f32, 2), awkward(shape, f32, 3)};
  const auto workspace = [](const Tensor& y) {
    const Program program({.inputs = {}, .outputs = {y}, .updates = {}});
    check_plan(program.plan());
    Bytes total;
    for (const Buffer& buffer : program.plan().buffers)
      if (buffer.in_arena()) total += buffer.size;  // the result has memory of its own
    return total;
  };
  EXPECT_EQ(workspace((x[0] * x[1] + x[2]) / x[1]), Bytes{});
  EXPECT_EQ(workspace(where(less(x[0], x[1]), x[2], x[0])), Bytes{});
  EXPECT_GT(workspace(exp(x[0] * x[1]) + x[2]), Bytes{});  // exp has no link
}

}  // namespace
}  // namespace ebb::test
