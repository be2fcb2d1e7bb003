// Work on several ranks that are threads of the test.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "ebb/communicator.h"
#include "ebb/dist/ranks.h"
#include "ebb/threads.h"

namespace ebb::test {

// The results of `work` on each of `count` ranks. The first error of any rank is thrown after all
// have ended; a rank that fails is lost to the others.
template <class Result>
std::vector<Result> on_threads(
    int count, const std::function<Result(const std::shared_ptr<Communicator>&)>& work) {
  auto ranks = dist::thread_ranks(count);
  std::vector<Result> results(ranks.size());
  std::vector<std::exception_ptr> errors(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    threads.emplace_back([&, r, own = std::move(ranks[r])]() mutable {
      set_threads(ebb::threads());  // a setting of OpenMP's that every thread has for itself
      try {
        results[r] = work(own);
      } catch (...) {
        errors[r] = std::current_exception();
      }
      own.reset();
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  return results;
}

}  // namespace ebb::test
