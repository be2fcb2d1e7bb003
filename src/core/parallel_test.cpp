#include "core/parallel.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace ebb {
namespace {

// How often each index of [0, count) was visited; workers out of range count as no visit.
std::vector<int> visits(std::int64_t count, std::int64_t grain, int workers) {
  std::vector<int> seen(static_cast<std::size_t>(count));
  parallel_for_workers(count, grain, workers,
                       [&](int worker, std::int64_t begin, std::int64_t end) {
                         for (std::int64_t i = begin; i < end; ++i)
                           seen[static_cast<std::size_t>(i)] += worker >= 0 && worker < workers;
                       });
  return seen;
}

TEST(Parallel, VisitsEveryIndexOnce) {
  for (const int workers : {1, 2, 3, 7, 2})  // fewer after more: threads that have nothing to do
    for (const std::int64_t count : {0, 1, 5, 1000})
      for (const std::int64_t grain : {1, 3, 4000})
        EXPECT_EQ(visits(count, grain, workers),
                  std::vector<int>(static_cast<std::size_t>(count), 1))
            << count << " by " << grain << " on " << workers;
}

TEST(Parallel, CallsInsideCalls) {
  std::vector<std::vector<int>> seen(4);
  parallel_for_workers(4, 1, 4, [&](int, std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) seen[static_cast<std::size_t>(i)] = visits(50, 1, 3);
  });
  for (const auto& inner : seen) EXPECT_EQ(inner, std::vector<int>(50, 1));
}

TEST(Parallel, SeveralCallersAtOnce) {
  std::vector<std::vector<int>> seen(4);
  {
    std::vector<std::jthread> callers;
    for (auto& mine : seen)
      callers.emplace_back([&mine] {
        mine.assign(300, 0);
        for (int round = 0; round < 100; ++round)
          parallel_for_workers(300, 1, 3, [&](int, std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) ++mine[static_cast<std::size_t>(i)];
          });
      });
  }
  for (const auto& mine : seen) EXPECT_EQ(mine, std::vector<int>(300, 100));
}

}  // namespace
}  // namespace ebb
