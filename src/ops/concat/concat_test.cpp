#include <gtest/gtest.h>

#include "ebb/grad.h"
#include "ebb/ops.h"
#include "ebb/program.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

TEST(Concat, Gradients) {
  check({"concat",
         {SampleInput::real({2, 3}), SampleInput::real({2, 1}), SampleInput::real({2, 2})},
         [](const auto& x) { return std::vector{square(concat(x, 1))}; }});
  check({"concat of views",
         {SampleInput::real({2, 3}), SampleInput::real({3, 2})},
         [](const auto& x) {
           return std::vector{concat({transpose(x[0]), square(x[1])}, 0)};
         }});
  check({"stack", {SampleInput::real({2, 3}), SampleInput::real({2, 3})}, [](const auto& x) {
           return std::vector{square(stack(x, -1))};
         }});
}

// Every part is tested by itself, for any number of parts: only one of them gets no gradient.
TEST(Concat, ManyParts) {
  for (const int count : {33, 70}) {
    std::vector<Tensor> parts;
    for (int i = 0; i < count; ++i) parts.push_back(full({1}, i + 1.0, f64));
    const Tensor constant = parts[32];
    std::vector<Tensor> wanted = parts;
    wanted.erase(wanted.begin() + 32);
    const std::vector<Tensor> gradients = grad(sum(square(concat(parts, 0))), wanted);
    for (int i = 0; i < count - 1; ++i) {
      const double value = i < 32 ? i + 1.0 : i + 2.0;
      EXPECT_EQ(values_of(eval(gradients[static_cast<std::size_t>(i)])),
                std::vector<double>{2.0 * value})
          << i << " of " << count;
    }
    EXPECT_EQ(values_of(eval(grad(sum(square(concat(parts, 0))), {constant})[0])),
              std::vector<double>{66.0});
  }
}

TEST(IndexSet, HoldsAnyNumber) {
  IndexSet set{0, 31};
  for (const int i : {32, 33, 64, 1000}) {
    EXPECT_FALSE(set.contains(i)) << i;
    set.insert(i);
    EXPECT_TRUE(set.contains(i)) << i;
  }
  EXPECT_FALSE(set.contains(1));
  EXPECT_FALSE((IndexSet{0} == IndexSet{32}));
}

TEST(Concat, Errors) {
  expect_error([] { concat({}, 0); }, {"[concat]", "none came"});
  expect_error(
      [] {
        concat({zeros({2, 3}), zeros({3, 3})}, 1);
      },
      {"[concat]", "axis 1", "part 1", "axis 0"});
  expect_error(
      [] {
        concat({zeros({2}), zeros({2}, f64)}, 0);
      },
      {"[concat]", "float32 and float64"});
  expect_error([] { concat({zeros({2}), zeros({2})}, 1); }, {"[concat]", "axis 1"});
  expect_error([] { stack({zeros({2}), zeros({3})}, 0); }, {"[concat]"});
}

}  // namespace
}  // namespace ebb::test
