#include <gtest/gtest.h>

#include "ebb/threads.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

Sample product(const char* name, Shape a, Shape b, Transpose ta, Transpose tb) {
  return {name, {SampleInput::real(a), SampleInput::real(b)}, [ta, tb](const auto& x) {
            return std::vector{matmul(x[0], x[1], ta, tb)};
          }};
}

TEST(Matmul, Transposes) {
  check(product("plain", {3, 4}, {4, 5}, Transpose::no, Transpose::no));
  check(product("first transposed", {4, 3}, {4, 5}, Transpose::yes, Transpose::no));
  check(product("second transposed", {3, 4}, {5, 4}, Transpose::no, Transpose::yes));
  check(product("both transposed", {4, 3}, {5, 4}, Transpose::yes, Transpose::yes));
}

TEST(Matmul, BatchesBroadcast) {
  check(product("batch", {2, 3, 4}, {2, 4, 2}, Transpose::no, Transpose::no));
  check(product("broadcast first", {1, 3, 4}, {2, 4, 2}, Transpose::no, Transpose::no));
  check(product("matrix on the right", {2, 3, 4}, {4, 2}, Transpose::no, Transpose::no));
  check(product("matrix on the left", {3, 4}, {2, 4, 2}, Transpose::no, Transpose::no));
  check(product("two leading axes", {2, 1, 3, 4}, {3, 2, 4}, Transpose::no, Transpose::yes));
}

TEST(Matmul, Linear) {
  check({"linear",
         {SampleInput::real({2, 3, 4}), SampleInput::real({5, 4}), SampleInput::real({5})},
         [](const auto& x) { return std::vector{linear(x[0], x[1], x[2])}; }});
}

TEST(Matmul, ReadsViewsWithoutCopies) {
  check({"views",
         {SampleInput::real({2, 3, 4, 5}), SampleInput::real({2, 3, 4, 5})},
         [](const auto& x) {
           // (B, T, H, D) → (B, H, T, D), as attention has it.
           return std::vector{matmul(permute(x[0], {0, 2, 1, 3}), permute(x[1], {0, 2, 3, 1}))};
         }});
  const Tensor a = Tensor::from(std::vector<float>(24, 1.0f), {2, 3, 4});
  const Program program({.inputs = {},
                         .outputs = {matmul(permute(a, {1, 0, 2}), permute(a, {1, 2, 0}))},
                         .updates = {}});
  EXPECT_EQ(program.plan().instructions.size(), 1u);
}

// Sizes that do not divide by the threads or by the blocks of kernels.
TEST(Matmul, TheNumberOfThreadsChangesNoBit) {
  const int before = threads();
  for (const auto& [rows, inner, columns] : {std::tuple{256, 128, 500},
                                             {500, 128, 64},
                                             {344, 256, 128},
                                             {97, 300, 1001},
                                             {2000, 37, 71}})
    for (DType dtype : {f32, f64, f16, bf16})
      for (Transpose turned : {Transpose::no, Transpose::yes}) {
        const bool swap = turned == Transpose::yes;
        const Tensor a = eval(random_normal(swap ? Shape{inner, rows} : Shape{rows, inner}, 0.0,
                                            1.0, dtype, device::cpu, RandomKey{1})),
                     b = eval(random_normal(swap ? Shape{columns, inner} : Shape{inner, columns},
                                            0.0, 1.0, dtype, device::cpu, RandomKey{2}));
        set_threads(1);
        const std::vector<double> alone = values_of(eval(matmul(a, b, turned, turned)));
        for (int count : {2, 3, 5, 8}) {
          set_threads(count);
          EXPECT_TRUE(values_of(eval(matmul(a, b, turned, turned))) == alone)
              << rows << " x " << inner << " x " << columns << " " << name(dtype) << " on "
              << count;
        }
      }
  set_threads(before);
}

TEST(Matmul, EmptySizes) {
  const Tensor a = zeros({2, 0}), b = zeros({0, 3});
  EXPECT_EQ(matmul(a, b).to_vector<float>(), std::vector<float>(6, 0.0f));
  EXPECT_EQ(linear(a, zeros({3, 0}), ones({3})).to_vector<float>(), std::vector<float>(6, 1.0f));
  // Leading axes are folded into rows.
  EXPECT_EQ(matmul(zeros({2, 1, 0}), b).to_vector<float>(), std::vector<float>(6, 0.0f));
  EXPECT_EQ(linear(zeros({2, 1, 0}), zeros({3, 0}), ones({3})).shape(), (Shape{2, 1, 3}));
}

TEST(Matmul, Errors) {
  const PathScope path("h.0.fc");
  expect_error(
      [] {
        matmul(zeros({2, 3}), zeros({4, 5}));
      },
      {"[matmul]", "h.0.fc", "3 and 4", "(2, 3)", "(4, 5)"});
  expect_error([] { matmul(zeros({3}), zeros({3, 2})); }, {"[matmul]", "two axes"});
  expect_error(
      [] {
        matmul(zeros({2, 3}), zeros({3, 2}, f64));
      },
      {"[matmul]", "float32 and float64"});
  expect_error(
      [] {
        matmul(zeros({2, 3}, i32), zeros({3, 2}, i32));
      },
      {"[matmul]", "floating-point", "int32"});
  expect_error([] { matmul(zeros({2, 2, 3}), zeros({3, 3, 2})); }, {"[matmul]", "broadcast"});
  expect_error(
      [] {
        linear(zeros({2, 3}), zeros({4, 3}), zeros({5}));
      },
      {"[matmul]", "bias", "(4,)"});
}

// Products of few rows (few_rows.h): both layouts of the matrix, sizes that fill no vector.
TEST(Matmul, FewRows) {
  for (const std::int64_t rows : {1, 3, 8}) {
    Sample plain{
        "columns in one piece",
        {SampleInput::real({rows, 131}), SampleInput::real({131, 203}), SampleInput::real({203})},
        [](const auto& x) { return std::vector{linear(x[0], x[1], x[2], WeightLayout::in_out)}; }};
    Sample turned{"inner axis in one piece",
                  {SampleInput::real({rows, 131}), SampleInput::real({203, 131})},
                  [](const auto& x) { return std::vector{linear(x[0], x[1])}; }};
    for (Sample* sample : {&plain, &turned}) {
      sample->second_order = false;
      check(*sample);
    }
  }
}

// Sizes that whole packs divide, which a GPU reads directly, with a bias and a residual.
TEST(Matmul, FewRowsInWholePacks) {
  for (const std::int64_t rows : {1, 2, 3, 7}) {
    check_cuda({"columns in one piece",
                {SampleInput::real({rows, 264}), SampleInput::real({264, 328}),
                 SampleInput::real({328}), SampleInput::real({rows, 328})},
                [](const auto& x) {
                  return std::vector{linear(x[0], x[1], x[2], WeightLayout::in_out) + x[3]};
                }});
    check_cuda({"inner axis in one piece",
                {SampleInput::real({rows, 264}), SampleInput::real({331, 264}),
                 SampleInput::real({rows, 331})},
                [](const auto& x) { return std::vector{linear(x[0], x[1]) + x[2]}; }});
  }
}

// An inner axis that is summed in several pieces, the last one shorter, and columns that fill no
// register; the same bits for every number of threads.
TEST(Matmul, FewRowsInPieces) {
  for (const DType dtype : {f32, f16, bf16}) {
    const Tensor x = eval(random_normal({3, 1027}, 0.0, 1.0, dtype)),
                 w = eval(random_normal({1027, 73}, 0.0, 1.0, dtype));
    const std::vector<double> exact = values_of(matmul(cast(x, f64), cast(w, f64)));
    const int before = threads();
    std::vector<double> first;
    for (const int count : {1, 2, 5}) {
      set_threads(count);
      const std::vector<double> y = values_of(matmul(x, w));
      if (first.empty()) first = y;
      EXPECT_EQ(y, first) << name(dtype) << " with " << count << " threads";
    }
    set_threads(before);
    // Results are about 32 in size: half of their last place, and the rounding of 1027 sums.
    const double allowed = dtype == f32 ? 1e-4 : dtype == f16 ? 0.05 : 0.4;
    for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(first[i], exact[i], allowed);
  }
}

TEST(Matmul, OtherRowsChangeNoBitOfARow) {
  for (const DType dtype : {f32, f16, bf16}) {
    const Tensor x = eval(random_normal({8, 301}, 0.0, 1.0, dtype)),
                 w = eval(random_normal({301, 130}, 0.0, 1.0, dtype)),
                 t = eval(contiguous(transpose(w)));
    for (const bool turned : {false, true}) {
      const auto product = [&](const Tensor& rows) {
        const Tensor y = turned ? matmul(rows, t, Transpose::no, Transpose::yes) : matmul(rows, w);
        return values_of(y);
      };
      for (const std::int64_t rows : {2, 3, 4, 5, 6, 7, 8}) {
        const std::vector<double> all = product(contiguous(slice(x, 0, 0, rows)));
        for (const std::int64_t row : {std::int64_t{0}, rows - 1}) {
          const std::vector<double> one = product(contiguous(slice(x, 0, row, row + 1)));
          EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin() + row * 130))
              << name(dtype) << " row " << row << " of " << rows;
        }
      }
    }
  }
}

}  // namespace
}  // namespace ebb::test
