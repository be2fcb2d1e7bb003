// Like parallel_for, but each thread takes another range whenever it has finished one. For work
// that must not wait for a thread slowed down by another process. No result may depend on which
// thread takes which range.
#pragma once

#include <atomic>

#include "core/parallel.h"

namespace ebb {

// Calls body(begin, end) on disjoint ranges of about `grain` indices or more that cover [0, count).
template <class Body>
void parallel_take(std::int64_t count, std::int64_t grain, const Body& body) {
  constexpr std::int64_t ranges = 8;  // of a thread, at most
  const std::int64_t workers = std::min<std::int64_t>(threads(), (count + grain - 1) / grain);
  if (workers <= 1) {
    if (count > 0) body(std::int64_t{0}, count);
    return;
  }
  const std::int64_t step = std::max(grain, (count + ranges * workers - 1) / (ranges * workers));
  std::atomic<std::int64_t> next = 0;
  parallel_for_workers(workers, 1, threads(), [&](int, std::int64_t begin, std::int64_t end) {
    for (std::int64_t worker = begin; worker < end; ++worker)
      for (std::int64_t first; (first = next.fetch_add(step, std::memory_order_relaxed)) < count;)
        body(first, std::min(first + step, count));
  });
}

}  // namespace ebb
