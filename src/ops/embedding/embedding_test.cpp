#include <gtest/gtest.h>

#include "support/op_check.h"

namespace ebb::test {
namespace {

Sample sample(const char* name, Shape table, Shape ids, DType dtype = i64) {
  return {name,
          {SampleInput::real(table), SampleInput::index(ids, table[0], dtype)},
          [](const auto& x) { return std::vector{square(embedding(x[0], x[1]))}; }};
}

TEST(Embedding, Gradients) {
  check(sample("more ids than rows", {4, 3}, {2, 5}));
  check(sample("more rows than ids", {9, 3}, {4}, i32));
  check(sample("several tiles of columns", {3, 600}, {5}));
  check(sample("one id", {3, 2}, {}));
}

TEST(Embedding, GradientAddsHalfTypesInFloat) {
  // 4096 ones in one row: a bfloat16 sum stops growing at 256.
  const Tensor table = zeros({2, 3}, bf16), ids = zeros({4096}, i64);
  const Tensor g = grad(sum(embedding(table, ids)), {table})[0];
  EXPECT_EQ(values_of(g), (std::vector<double>{4096, 4096, 4096, 0, 0, 0}));
}

TEST(Embedding, DoesNotDependOnThreads) {
  const int before = threads();
  const Sample s = sample("threads", {50, 64}, {3, 700});
  const Tensor table = make_input(s.inputs[0], f32, 1), ids = make_input(s.inputs[1], f32, 2);
  const Tensor g = grad(sum(square(embedding(table, ids))), {table})[0];
  std::vector<float> expected;
  for (int count : {1, 2, 3}) {
    set_threads(count);
    const std::vector<float> values = g.to_vector<float>();
    if (expected.empty()) expected = values;
    EXPECT_EQ(values, expected) << count << " threads";
  }
  set_threads(before);
}

TEST(Embedding, EmptySizes) {
  const Tensor table = zeros({3, 2}), none = zeros({0}, i64);
  EXPECT_EQ(embedding(table, none).shape(), (Shape{0, 2}));
  EXPECT_EQ(grad(sum(embedding(table, none)), {table})[0].to_vector<float>(),
            std::vector<float>(6, 0.0f));
  EXPECT_TRUE(embedding(zeros({3, 0}), zeros({2}, i64)).to_vector<float>().empty());
}

TEST(Embedding, BadIdsAreReportedWhenRun) {
  const Tensor table = zeros({3, 2});
  for (std::int64_t bad : {std::int64_t{3}, std::int64_t{-1}}) {
    const Tensor ids = Tensor::from(std::vector<std::int64_t>{0, bad}, {2});
    const std::string id = "index " + std::to_string(bad);
    expect_error([&] { eval(embedding(table, ids)); }, {"[embedding]", id, "position 1", "[0, 3)"});
    expect_error([&] { eval(grad(sum(embedding(table, ids)), {table})[0]); },
                 {"[embedding_grad]", id, "position 1", "[0, 3)"});
  }
}

TEST(Embedding, Errors) {
  expect_error(
      [] {
        embedding(zeros({2, 3}), zeros({2}));
      },
      {"[embedding]", "int64 or int32", "float32"});
  expect_error([] { embedding(zeros({3}), zeros({2}, i64)); }, {"[embedding]", "rank 2"});
}

}  // namespace
}  // namespace ebb::test
