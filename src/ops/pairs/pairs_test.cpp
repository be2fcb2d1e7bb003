#include "ebb/pairs.h"

#include <gtest/gtest.h>

#include <limits>

#include "ebb/threads.h"
#include "support/op_check.h"
#include "support/other_device.h"

namespace ebb::test {
namespace {

// Positions with two bits in each four, in some order.
SampleInput positions(std::int64_t rows, std::int64_t columns) {
  constexpr unsigned pairs[] = {3, 5, 9, 6, 10, 12};
  SampleInput input = SampleInput::index({rows, (columns + 7) / 8}, 1, u8);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; c += 8) {
      const auto i = static_cast<std::size_t>(r * 7 + c / 8 * 5);
      const unsigned low = pairs[i % 6], high = c + 4 < columns ? pairs[(i + r) % 6] : 0;
      input.values.push_back(low | high << 4);
    }
  return input;
}

Tensor random_matrix(const Shape& shape, DType dtype = f32, std::uint64_t seed = 3) {
  return eval(random_normal(shape, 0.0, 0.5, dtype), seed);
}

TEST(Pairs, Samples) {
  for (const std::int64_t columns : {4, 20, 40}) {
    check({"taken", {SampleInput::real({3, columns}), positions(3, columns)}, [](const auto& x) {
             return std::vector{take_pairs(x[0], x[1])};
           }});
    check({"spread",
           {SampleInput::real({3, columns / 2}), positions(3, columns)},
           [](const auto& x) { return std::vector{spread_pairs(x[0], x[1])}; }});
    for (const std::int64_t rows : {2, 11})  // direct, and by tiles
      check({"a product",
             {SampleInput::real({rows, columns}), SampleInput::real({5, columns / 2}),
              positions(5, columns)},
             [](const auto& x) { return std::vector{pair_linear(x[0], x[1], x[2])}; }});
  }
  check({"three axes and a bias",
         {SampleInput::real({2, 3, 8}), SampleInput::real({4, 4}), positions(4, 8),
          SampleInput::real({4})},
         [](const auto& x) { return std::vector{pair_linear(x[0], x[1], x[2], x[3])}; }});
  check({"chosen", {SampleInput::fixed({3, 12}, -1.5, 1.5)}, [](const auto& x) {
           return std::vector{choose_pairs(cast(cast(x[0], bf16), f32))};
         }});
}

TEST(Pairs, TheTwoFarthestFromZeroStay) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor matrix =
      Tensor::from(std::vector<float>{1, -3, 2, 0, 0, 0, 0, 5, 1, 1, 1, 1, nan, 9, 7, 8}, {2, 8});
  EXPECT_EQ(choose_pairs(matrix).to_vector<std::uint8_t>(),
            (std::vector<std::uint8_t>{0b1001'0110, 0b0011'0011}));
  const Tensor kept = take_pairs(matrix, choose_pairs(matrix));
  EXPECT_EQ(eval(slice(kept, 0, 0, 1)).to_vector<float>(), (std::vector<float>{-3, 2, 0, 5}));
}

// A matrix of the pattern comes back to the bit, in 9/16 of the bytes in bfloat16.
TEST(Pairs, NothingIsLost) {
  for (const DType dtype : {f64, f32, f16, bf16}) {
    const Tensor dense = random_matrix({37, 68}, dtype), chosen = eval(choose_pairs(dense));
    const Tensor pruned = eval(spread_pairs(take_pairs(dense, chosen), chosen));
    const Tensor again = eval(choose_pairs(pruned));
    EXPECT_EQ(values_of(spread_pairs(take_pairs(pruned, again), again)), values_of(pruned));
  }
  const TensorType values{{64, 256}, bf16}, dense{{64, 512}, bf16};
  EXPECT_EQ(16 * (values.bytes() + positions_type(64, 512).bytes()), 9 * dense.bytes());
}

// Sizes beyond one tile in both axes, against float64; few rows and many.
TEST(Pairs, TilesAgreeWithFloat64) {
  const Tensor dense = random_matrix({530, 1100}), at = eval(choose_pairs(dense));
  for (const std::int64_t rows : {3, 21})
    for (const DType dtype : {f32, f16, bf16}) {
      const Tensor values = eval(take_pairs(cast(dense, dtype), at)),
                   x = random_matrix({rows, 1100}, dtype);
      const Tensor wide = spread_pairs(cast(values, f64), at);
      const auto expected = values_of(matmul(cast(x, f64), wide, Transpose::no, Transpose::yes));
      const auto got = values_of(pair_linear(x, values, at));
      // Sums of 550 products of size 0.25: float32 keeps six digits; a half type rounds a result of
      // up to 32.
      const double tolerance = dtype == f32 ? 2e-4 : dtype == f16 ? 3.2e-2 : 0.26;
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], expected[i], tolerance) << name(dtype) << " " << i;
    }
}

TEST(Pairs, TheNumberOfThreadsChangesNoBit) {
  const int before = threads();
  const Tensor dense = random_matrix({600, 1504}), at = eval(choose_pairs(dense)),
               values = eval(take_pairs(dense, at));
  for (const std::int64_t rows : {3, 120}) {
    const Tensor x = random_matrix({rows, 1504});
    set_threads(1);
    const auto one = pair_linear(x, values, at).to_vector<float>();
    set_threads(3);
    EXPECT_EQ(pair_linear(x, values, at).to_vector<float>(), one);
  }
  set_threads(before);
}

TEST(Pairs, EmptySizes) {
  const auto product = [](std::int64_t rows, std::int64_t out, std::int64_t in) {
    return pair_linear(zeros({rows, in}), zeros({out, in / 2}),
                       zeros(positions_type(out, in).shape, u8))
        .to_vector<float>();
  };
  EXPECT_TRUE(product(0, 3, 8).empty());
  EXPECT_TRUE(product(20, 0, 8).empty());
  EXPECT_EQ(product(20, 3, 0), std::vector<float>(60, 0.0f));
  EXPECT_EQ(product(2, 3, 0), std::vector<float>(6, 0.0f));
}

TEST(Pairs, Errors) {
  const Tensor at = zeros({3, 1}, u8);
  expect_error([] { choose_pairs(zeros({3, 6})); }, {"[choose_pairs]", "6 columns"});
  expect_error([&] { take_pairs(zeros({3, 16}), at); }, {"[take_pairs]", "3 × 16", "uint8 (3, 2)"});
  expect_error([&] { spread_pairs(zeros({3, 4}, i32), at); }, {"floating-point", "int32"});
  expect_error([&] { pair_linear(zeros({2, 9}), zeros({3, 4}), at); }, {"[pair_linear]", "8", "9"});
  expect_error([&] { pair_linear(zeros({2, 8}, bf16), zeros({3, 4}), at); }, {"same dtype"});
  // There is no kernel for GPUs: planning says so.
  if (!built_with_cuda()) return;
  Graph graph;
  graph.inputs = {input({{2, 8}, f32}, "x", device::cuda(0))};
  graph.outputs = {pair_linear(graph.inputs[0], zeros({3, 4}, f32, device::cuda(0)),
                               zeros({3, 1}, u8, device::cuda(0)))};
  expect_error([&] { plan_program(graph); }, {"pair_linear", "cuda"});
}

}  // namespace
}  // namespace ebb::test
