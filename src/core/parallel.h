// Data parallelism for CPU kernels, on OpenMP so that ebb, OpenBLAS and oneDNN share one set of
// threads. The thread sanitizer cannot see how OpenMP's runtime synchronises, so a build for it
// (EBB_PARALLEL=threads) runs the same pieces on ebb's own pool.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "ebb/threads.h"
#ifdef EBB_PARALLEL_THREADS
#include "core/thread_pool.h"
#endif

namespace ebb {

// Threads for OpenBLAS and oneDNN, which support only OpenMP: without OpenMP they use the calling
// thread.
inline int library_threads() {
#ifdef EBB_PARALLEL_THREADS
  return 1;
#else
  return threads();
#endif
}

// While it exists, libraries called from this thread use this many threads.
class LibraryThreads {
 public:
  explicit LibraryThreads(int count) : before_(omp_get_max_threads()) {
    if (before_ != count) omp_set_num_threads(count);
  }
  ~LibraryThreads() {
    if (omp_get_max_threads() != before_) omp_set_num_threads(before_);
  }
  LibraryThreads(const LibraryThreads&) = delete;
  LibraryThreads& operator=(const LibraryThreads&) = delete;

 private:
  int before_;
};

// Calls body(worker, begin, end) on disjoint ranges that cover [0, count), worker < workers. Ranges
// hold about `grain` indices or more and the split depends only on the three numbers. The body must
// not throw.
template <class Body>
void parallel_for_workers(std::int64_t count, std::int64_t grain, int workers, const Body& body) {
  const std::int64_t pieces = (count + grain - 1) / std::max<std::int64_t>(grain, 1);
  const std::int64_t chunks = std::min<std::int64_t>(workers, pieces);
  if (chunks <= 1) {
    if (count > 0) body(0, std::int64_t{0}, count);
    return;
  }
  const auto chunk = [&](std::int64_t i) {
    body(static_cast<int>(i), count * i / chunks, count * (i + 1) / chunks);
  };
#ifdef EBB_PARALLEL_THREADS
  run_on_pool(static_cast<int>(chunks), chunk);
#else
  // Always uses the whole team: the OpenMP library ends threads that a smaller team does not need,
  // and starting new ones for the next region costs more than the work.
  const int team = std::max(workers, threads());
#pragma omp parallel for schedule(static, 1) num_threads(team)
  for (std::int64_t i = 0; i < chunks; ++i) chunk(i);
#endif
}

// The same with body(begin, end), for kernels that need no scratch area per worker.
template <class Body>
void parallel_for(std::int64_t count, std::int64_t grain, const Body& body) {
  parallel_for_workers(count, grain, threads(),
                       [&](int, std::int64_t begin, std::int64_t end) { body(begin, end); });
}

}  // namespace ebb
