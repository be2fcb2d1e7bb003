// Tensors as text.
#include "ebb/print.h"

#include <gtest/gtest.h>

#include <sstream>

#include "ebb/ops.h"
#include "ebb/train/train_step.h"

namespace ebb::test {
namespace {

TEST(Print, SmallTensorsAreComputed) {
  const Tensor x = Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6.5}, {2, 3});
  EXPECT_EQ(to_string(x * x), "float32 (2, 3) [[1, 4, 9], [16, 25, 42.25]]");
  std::ostringstream stream;
  stream << sum(x);
  EXPECT_EQ(stream.str(), to_string(sum(x).type()) + " 21.5");
  EXPECT_EQ(to_string(eval(full({1}, 4611686018427387905.0, i64))).substr(0, 5), "int64");
  EXPECT_EQ(to_string(Tensor{}), "no tensor");
  EXPECT_EQ(to_string(zeros({0, 2})), to_string(zeros({0, 2}).type()) + " []");
}

TEST(Print, LargeTensorsAreElided) {
  const std::string text = to_string(cast(arange(100, i64), f32));
  EXPECT_EQ(text, "float32 (100,) [0, 1, 2, ..., 97, 98, 99]");
  EXPECT_EQ(to_string(zeros({2048, 1024})), to_string(zeros({2048, 1024}).type()) + " ...");
}

}  // namespace
}  // namespace ebb::test
