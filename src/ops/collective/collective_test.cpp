#include "ops/collective/collective.h"

#include <gtest/gtest.h>

#include <cstring>

#include "ebb/communicator.h"
#include "ebb/ebb.h"
#include "support/op_check.h"
#include "support/thread_ranks.h"

namespace ebb::test {
namespace {

// With one rank they are sums and copies.
TEST(Collective, OneRank) {
  const auto numbers = [](double value) { return eval(full({3, 5}, value, f32)); };
  const std::vector<Tensor> blocks{numbers(1), numbers(2), numbers(3)};
  EXPECT_EQ(values_of(eval(all_reduce(blocks, 1, 3))), values_of(numbers(6)));
  const Tensor range = reduce_scatter(blocks, 1, 2);
  EXPECT_EQ(range.shape(), Shape{range_alignment});
  EXPECT_EQ(values_of(eval(all_gather(range, {3, 5}, 1))), values_of(numbers(3)));
  EXPECT_EQ(values_of(eval(all_gather(own_range(blocks[2], 1), {15}, 1))),
            std::vector<double>(15, 3.0));
}

TEST(Collective, RefusesWrongCalls) {
  expect_error([] { all_reduce({zeros({3}), zeros({4})}, 2, 2); }, {"[all_reduce]", "one type"});
  expect_error([] { all_reduce({zeros({3})}, 2, 3); }, {"[all_reduce]", "3 from number 0"});
  expect_error([] { all_reduce({zeros({3})}, 3, 2, 2); }, {"[all_reduce]", "2 from number 2"});
  expect_error([] { all_reduce({zeros({3}, i64)}, 2, 2); }, {"[all_reduce]"});
  expect_error([] { all_gather(zeros({64}), {200}, 3); }, {"[all_gather]", "too few"});
  expect_error([] { all_gather(zeros({8, 8}), {64}, 1); }, {"[all_gather]"});
  expect_error([] { own_range(zeros({3}), 0); }, {"[own_range]", "at least 1"});
  const Tensor x = Variable(zeros({64}));
  expect_error([&] { grad(sum(own_range(x, 2)), {x}); }, {"[own_range]", "no gradient"});
  expect_error([] { eval(all_reduce({zeros({3})}, 2, 2)); }, {"2 ranks", "no communicator"});
}

TEST(Collective, RangesCoverTheTensor) {
  for (const std::int64_t n : {0, 1, 63, 64, 65, 1000, 50257})
    for (const std::int64_t ranks : {1, 2, 3, 4, 7}) {
      const std::int64_t range = range_elements(n, ranks);
      EXPECT_GE(range * ranks, n);
      EXPECT_EQ(range % range_alignment, 0);
      EXPECT_LT(range, (n + ranks - 1) / ranks + range_alignment);
    }
}

void on_ranks(int count, const std::function<void(const std::shared_ptr<Communicator>&)>& work) {
  on_threads<int>(count, [&](const auto& own) {
    work(own);
    return 0;
  });
}

Tensor block(std::int64_t number, const Shape& shape, DType dtype) {
  return eval(cast(random_uniform(shape, -1.0, 1.0, f32, device::cpu,
                                  RandomKey{static_cast<std::uint64_t>(number)}),
                   dtype));
}

Tensor tree(const std::vector<Tensor>& blocks, std::size_t lo, std::size_t hi) {
  if (hi - lo == 1) return blocks[lo];
  const std::size_t middle = lo + static_cast<std::size_t>(tree_split(std::int64_t(hi - lo)));
  return tree(blocks, lo, middle) + tree(blocks, middle, hi);
}

std::vector<Tensor> run_on(const std::shared_ptr<Communicator>& rank, std::vector<Tensor> outputs) {
  CompileOptions options;
  options.communicator = rank;
  Program program({.inputs = {}, .outputs = outputs, .updates = {}}, options);
  program.run();
  std::vector<Tensor> results;
  for (std::size_t i = 0; i < outputs.size(); ++i)
    results.push_back(program.output(static_cast<int>(i)));
  return results;
}

// The sum has the bits of additions in the order of the tree, whichever rank has which block.
TEST(CollectiveRanks, SumsHaveTheBitsOfTheTree) {
  for (const DType dtype : {f32, f64, bf16})
    for (const Shape& shape : {Shape{1}, Shape{7, 31}, Shape{70001}})
      for (const int ranks : {2, 3, 4}) {
        const std::int64_t slots = 2, blocks = 2 * ranks - 1;  // the last rank has one to ignore
        std::vector<Tensor> all;
        for (std::int64_t b = 0; b < slots * ranks; ++b) all.push_back(block(b, shape, dtype));
        const std::vector<double> whole =
            values_of(eval(tree(all, 0, static_cast<std::size_t>(blocks))));
        std::vector<std::vector<double>> ranges(static_cast<std::size_t>(ranks));
        on_ranks(ranks, [&](const std::shared_ptr<Communicator>& rank) {
          const std::size_t first = static_cast<std::size_t>(rank->rank() * slots);
          const std::vector<Tensor> own{all[first], all[first + 1]};
          const Tensor range = reduce_scatter(own, ranks, blocks);
          const auto results =
              run_on(rank, {all_reduce(own, ranks, blocks), range, all_gather(range, shape, ranks),
                            own_range(all[0], ranks)});
          ranges[first / slots] = values_of(results[1]);
          EXPECT_EQ(values_of(results[0]), whole);
          EXPECT_EQ(values_of(results[2]), whole);
          const std::vector<double> parameter = values_of(all[0]), part = values_of(results[3]);
          for (std::size_t i = 0; i < part.size(); ++i) {
            const std::size_t at = first / slots * part.size() + i;
            EXPECT_EQ(part[i], at < parameter.size() ? parameter[at] : 0.0);
          }
        });
        std::vector<double> joined;
        for (const auto& range : ranges) joined.insert(joined.end(), range.begin(), range.end());
        for (std::size_t i = 0; i < joined.size(); ++i)
          ASSERT_EQ(joined[i], i < whole.size() ? whole[i] : 0.0) << i;
      }
}

// A sum of some ranks' blocks: a subtree of the whole sum.
TEST(CollectiveRanks, SumsOfSomeBlocks) {
  const Shape shape{7, 31};
  std::vector<Tensor> all;
  for (std::int64_t b = 0; b < 4; ++b) all.push_back(block(b, shape, f32));
  const std::vector<double> whole = values_of(eval(tree(all, 1, 3)));
  on_ranks(4, [&](const std::shared_ptr<Communicator>& rank) {
    const std::vector<Tensor> own{all[static_cast<std::size_t>(rank->rank())]};
    const auto results = run_on(
        rank, {all_reduce(own, 4, 2, 1), all_gather(reduce_scatter(own, 4, 2, 1), shape, 4)});
    EXPECT_EQ(values_of(results[0]), whole);
    EXPECT_EQ(values_of(results[1]), whole);
  });
}

// The gradient of a collective is a collective: for a sum that every rank squares, it is the sum of
// the gradients of all ranks.
TEST(CollectiveRanks, GradientsAreSums) {
  on_ranks(3, [](const std::shared_ptr<Communicator>& rank) {
    const double own = rank->rank() + 1.0;
    const Variable x(full({5}, own, f64)), r(full({range_alignment}, own, f64));
    const Tensor total = all_reduce({x}, 3, 3);
    const Tensor whole = all_gather(r, {600}, 3);
    const auto results =
        run_on(rank, {grad(sum(square(total)), {x})[0], grad(sum(square(whole)), {r})[0]});
    for (const double value : values_of(results[0])) EXPECT_EQ(value, 3 * 2 * 6.0);
    // Every rank squares every element; the last range ends after 600 - 2 · 256 elements.
    const std::vector<double> ranges = values_of(results[1]);
    for (std::size_t i = 0; i < ranges.size(); ++i)
      EXPECT_EQ(ranges[i], rank->rank() == 2 && i >= 88 ? 0.0 : 3 * 2 * own);
  });
}

TEST(CollectiveRanks, ALostThreadIsNamed) {
  try {
    on_ranks(3, [](const std::shared_ptr<Communicator>& rank) {
      if (rank->rank() == 1) return;
      rank->barrier("the test");
    });
    FAIL() << "nobody noticed";
  } catch (const RankError& error) {
    EXPECT_EQ(error.rank, 1);
    EXPECT_NE(std::string(error.what()).find("rank 1 was lost in the test"), std::string::npos);
  }
}

TEST(CollectiveRanks, AnotherCollectiveIsAnError) {
  EXPECT_THROW(on_ranks(2,
                        [](const std::shared_ptr<Communicator>& rank) {
                          rank->barrier(rank->rank() == 0 ? "one" : "another");
                        }),
               RankError);
}

}  // namespace
}  // namespace ebb::test
