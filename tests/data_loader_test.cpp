// The order of batches, how it is resumed, and the thread that makes them ahead.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "ebb/data/loader.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

using namespace data;

// Returns the requested items and the state in which they were requested.
class Echo : public Dataset {
 public:
  explicit Echo(std::int64_t size, std::int64_t broken = -1) : size_(size), broken_(broken) {}
  std::int64_t size() const override { return size_; }
  std::vector<TensorType> types(std::int64_t batch) const override {
    return {{{batch}, i64}, {{2}, i64}};
  }
  Batch batch(std::span<const std::int64_t> items, RandomState state) const override {
    ++made;
    if (std::find(items.begin(), items.end(), broken_) != items.end())
      throw FileError("item " + std::to_string(broken_) + " is broken");
    return {{Tensor::from(items, {static_cast<std::int64_t>(items.size())}),
             Tensor::from(std::vector<std::int64_t>{static_cast<std::int64_t>(state.seed),
                                                    static_cast<std::int64_t>(state.step)},
                          {2})}};
  }
  mutable std::atomic<int> made{0};

 private:
  std::int64_t size_, broken_;
};

std::vector<std::int64_t> items_of(const Batch& batch) {
  return batch.x().to_vector<std::int64_t>();
}

std::vector<std::int64_t> one_epoch(Loader& loader) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < loader.batches(); ++i) {
    const std::vector<std::int64_t> items = items_of(loader.next());
    all.insert(all.end(), items.begin(), items.end());
  }
  return all;
}

TEST(DataLoader, GivesEveryItemOnceAnEpochInAnOrderOfItsOwn) {
  Loader loader(std::make_shared<Echo>(103), {.batch = 10, .seed = 7});
  EXPECT_EQ(loader.batches(), 11);
  std::vector<std::int64_t> expected(103);
  std::iota(expected.begin(), expected.end(), 0);
  std::vector<std::vector<std::int64_t>> orders;
  for (int epoch = 0; epoch < 3; ++epoch) {
    EXPECT_EQ(loader.epoch(), epoch);
    orders.push_back(one_epoch(loader));
    std::vector<std::int64_t> sorted = orders.back();
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, expected);
    EXPECT_NE(orders.back(), expected);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
}

TEST(DataLoader, KeepsOrDropsTheLastBatch) {
  Loader keep(std::make_shared<Echo>(7), {.batch = 3, .shuffle = false});
  Loader drop(std::make_shared<Echo>(7), {.batch = 3, .shuffle = false, .last = LastBatch::drop});
  EXPECT_EQ(one_epoch(keep), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(one_epoch(drop), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(items_of(drop.next()), (std::vector<std::int64_t>{0, 1, 2}));
  ASSERT_EQ(keep.types().size(), 2u);
  EXPECT_EQ(keep.types()[1][0].shape, (Shape{1}));
  EXPECT_EQ(drop.types().size(), 1u);
}

TEST(DataLoader, ResumesWithTheSameBits) {
  const auto dataset = std::make_shared<Echo>(23);
  for (int prefetch : {0, 1, 3, 5}) {
    Loader loader(dataset, {.batch = 4, .seed = 5, .prefetch = prefetch, .workers = 4});
    for (int i = 0; i < 9; ++i) loader.next();
    const Loader::State state = loader.save();
    EXPECT_EQ(state.epoch, 1);
    EXPECT_EQ(state.position, 3);
    Loader resumed(dataset, {.batch = 4, .seed = 99, .prefetch = 2});
    resumed.next();
    resumed.restore(state);
    EXPECT_EQ(resumed.save(), state);
    for (int i = 0; i < 20; ++i) {
      const Batch a = loader.next(), b = resumed.next();
      EXPECT_EQ(items_of(a), items_of(b));
      EXPECT_EQ(a.y().to_vector<std::int64_t>(), b.y().to_vector<std::int64_t>());
    }
  }
}

TEST(DataLoader, AugmentsDifferentlyInEachEpoch) {
  Loader loader(std::make_shared<Echo>(2), {.batch = 2});
  EXPECT_NE(loader.next().y().to_vector<std::int64_t>(),
            loader.next().y().to_vector<std::int64_t>());
}

TEST(DataLoader, MakesNoMoreBatchesThanAsked) {
  const auto dataset = std::make_shared<Echo>(100);
  {
    Loader loader(dataset, {.batch = 1, .prefetch = 3, .workers = 2});
    loader.next();
    // Long enough for a thread without a limit to make all hundred.
    for (int i = 0; i < 100 && dataset->made < 4; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(dataset->made, 4);
  }
  const Loader unused(dataset, {.batch = 1});
  EXPECT_EQ(dataset->made, 4);
}

TEST(DataLoader, GivesErrorsWhereTheirBatchWouldBe) {
  for (int prefetch : {0, 2, 4}) {
    Loader loader(std::make_shared<Echo>(10, 5),
                  {.batch = 2, .shuffle = false, .prefetch = prefetch, .workers = 3});
    loader.next();
    const Loader::State state = loader.save();
    EXPECT_EQ(items_of(loader.next()), (std::vector<std::int64_t>{2, 3}));
    for (int i = 0; i < 2; ++i) EXPECT_THROW(loader.next(), FileError);
    EXPECT_EQ(loader.position(), 2);
    loader.restore(state);
    EXPECT_EQ(items_of(loader.next()), (std::vector<std::int64_t>{2, 3}));
    EXPECT_THROW(loader.next(), FileError);
  }
}

TEST(DataLoader, PreparesTheNextBatchWithoutTakingIt) {
  for (int prefetch : {0, 2}) {
    Loader loader(std::make_shared<Echo>(10, 5),
                  {.batch = 2, .shuffle = false, .prefetch = prefetch});
    loader.prepare();
    loader.prepare();
    EXPECT_EQ(loader.position(), 0);
    EXPECT_EQ(items_of(loader.next()), (std::vector<std::int64_t>{0, 1}));
    EXPECT_EQ(items_of(loader.next()), (std::vector<std::int64_t>{2, 3}));
    EXPECT_THROW(loader.prepare(), FileError);
    EXPECT_EQ(loader.position(), 2);
  }
}

TEST(DataLoader, MovesWhileItsThreadsRun) {
  Loader loader(std::make_shared<Echo>(6), {.batch = 2, .shuffle = false, .workers = 2});
  loader.next();
  Loader moved = std::move(loader);
  EXPECT_EQ(items_of(moved.next()), (std::vector<std::int64_t>{2, 3}));
}

TEST(DataLoader, RefusesWhatCannotBe) {
  const auto ten = std::make_shared<Echo>(10);
  expect_error([&] { Loader(nullptr); }, {"[Loader]", "none"});
  expect_error([&] { Loader(std::make_shared<Echo>(0)); }, {"no items"});
  expect_error([&] { Loader(ten, {.batch = 0}); }, {"at least one item", "0"});
  expect_error([&] { Loader(ten, {.prefetch = -1}); }, {"prefetch", "-1"});
  expect_error([&] { Loader(ten, {.workers = 0}); }, {"worker", "0"});
  expect_error([&] { Loader(ten, {.batch = 11, .last = LastBatch::drop}); }, {"11", "10 items"});
  Loader loader(ten, {.batch = 5});
  expect_error([&] { loader.restore({0, 0, 0, 11, 5}); }, {"11 items"});
  expect_error([&] { loader.restore({0, 0, 2, 10, 5}); }, {"batch 2 of 2"});
  expect_error([&] { Subset(ten, {0, 10}); }, {"item 10", "10"});
  expect_error([&] { Subset::range(ten, 3, 11); }, {"[3, 11)"});
}

TEST(DataLoader, SubsetsRenumber) {
  const Subset some(std::make_shared<Echo>(10), {7, 1, 4});
  EXPECT_EQ(some.size(), 3);
  const std::int64_t asked[] = {2, 0};
  EXPECT_EQ(items_of(some.batch(asked, {})), (std::vector<std::int64_t>{4, 7}));
}

}  // namespace
}  // namespace ebb::test
