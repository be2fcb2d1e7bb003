// Sizes above 2^31 - 1 are errors of planning: nothing is allocated here.
#include "ops/library_size.h"

#include <gtest/gtest.h>

#include "ebb/ebb.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

constexpr std::int64_t most = 2147483647, huge = 3'000'000'000;

TEST(LibrarySize, TheLargestThatALibraryTakes) {
  EXPECT_EQ(library_size("op", "rows", most), most);
  expect_error([] { library_size("op", "rows", most + 1); }, {"[op] rows", "2147483648"});
  require_library_sizes("op", {{"rows", most}, {"columns", 0}});
  expect_error(
      [] {
        require_library_sizes("op", {{"rows", 1}, {"columns", most + 1}});
      },
      {"[op] columns", "2147483648"});
}

void expect_refused(const Tensor& result, const std::vector<Tensor>& inputs,
                    const std::string& part) {
  expect_error([&] { plan_program({inputs, {result}, {}}); }, {part, "3000000000"});
}

TEST(LibrarySize, ProductsOnTheCpu) {
  const Tensor one = input({{1, 1}, f32}, "one"), two = input({{2, 2}, f64}, "two"),
               tall = input({{huge, 1}, f32}, "tall"), wide = input({{2, huge}, f64}, "wide");
  expect_refused(matmul(tall, one), {tall, one}, "[matmul] rows");
  expect_refused(matmul(two, wide), {two, wide}, "[matmul] columns");
  const Tensor other = input({{huge, 2}, f64}, "other");
  expect_refused(matmul(wide, other), {wide, other}, "[matmul] the inner size");
  // bfloat16 and float16 are multiplied in tiles, whose sizes are small.
  const Tensor halves = input({{huge, 1}, f16}, "halves"), half = input({{1, 1}, f16}, "half");
  EXPECT_GT(plan_program({{halves, half}, {matmul(halves, half)}, {}}).peak, 1_GiB);
}

TEST(LibrarySize, LossesAndConvolutions) {
  const Tensor x = input({{2, 2}, f32}, "x"), classes = input({{huge, 2}, f32}, "classes"),
               targets = input({{2}, i64}, "targets");
  expect_refused(linear_cross_entropy(x, classes, targets), {x, classes, targets},
                 "[linear_cross_entropy] classes");
  // float64, which oneDNN does not take.
  const Tensor image = input({{1, 1, 1, huge}, f64}, "image"),
               kernel = input({{1, 1, 1, 1}, f64}, "kernel");
  expect_refused(conv2d(image, kernel), {image, kernel}, "[conv2d] positions");
}

}  // namespace
}  // namespace ebb::test
