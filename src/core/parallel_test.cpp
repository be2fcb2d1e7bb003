#include "core/parallel.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <mutex>
#include <set>
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

// Where a region uses fewer workers than there are threads, the others wait for the next region. A
// thread that ends and starts again allocates inside a step, and loses the core it was pinned to.
TEST(Parallel, KeepsItsThreadsWhereFewerWork) {
  const int before = threads();
  set_threads(4);
  std::mutex mutex;
  std::set<pid_t> seen;  // of the system: a new thread can get an old std::thread::id
  for (int round = 0; round < 50; ++round)
    for (const int workers : {4, 3, 2})
      parallel_for_workers(4, 1, workers, [&](int, std::int64_t, std::int64_t) {
        const std::lock_guard lock(mutex);
        seen.insert(gettid());
      });
  set_threads(before);
  EXPECT_LE(seen.size(), 4u);
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
