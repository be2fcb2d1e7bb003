#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <span>

#include "core/parallel.h"
#include "core/processors.h"
#include "ebb/machine.h"

namespace ebb {
namespace {

std::atomic<bool> some_are_pinned = false;

// 0, or the error. Thread 0 is the calling one.
int allow(pid_t thread, const cpu_set_t& processors) {
  return sched_setaffinity(thread, sizeof processors, &processors) == 0 ? 0 : errno;
}

cpu_set_t set_of(std::span<const int> processors) {
  cpu_set_t result;
  CPU_ZERO(&result);
  for (const int processor : processors) CPU_SET(processor, &result);
  return result;
}

}  // namespace

struct PinnedThreads::Saved {
  pid_t thread = 0;
  cpu_set_t processors = {};
  int error = 0;
};

PinnedThreads::PinnedThreads() {
  const int count = threads();
  const std::vector<int> processors = processors_of_cores();
  if (static_cast<int>(processors.size()) < count) {
    grant_ = {Grant::Outcome::refused,
              fmt::format("{} threads need a core each, but the process may use {} cores", count,
                          processors.size())};
    return;
  }
  std::vector<Saved> saved(static_cast<std::size_t>(count));
  if (some_are_pinned.exchange(true)) {
    grant_ = {Grant::Outcome::refused, "threads of this process are pinned already"};
    return;
  }
  saved_ = std::move(saved);
  parallel_for_workers(count, 1, count, [&](int worker, std::int64_t, std::int64_t) {
    Saved& mine = saved_[static_cast<std::size_t>(worker)];
    mine.thread = gettid();
    mine.error = sched_getaffinity(0, sizeof mine.processors, &mine.processors) == 0 ? 0 : errno;
    const auto mine_alone = std::span(processors).subspan(static_cast<std::size_t>(worker), 1);
    if (mine.error == 0) mine.error = allow(0, set_of(mine_alone));
  });

  // If OpenMP starts fewer threads than requested, the calling thread has run several of these
  // bodies.
  const auto alone = std::count_if(saved_.begin(), saved_.end(), [&](const Saved& other) {
                       return other.thread == saved_.front().thread;
                     }) == 1;
  const auto failed = std::find_if(saved_.begin(), saved_.end(),
                                   [](const Saved& thread) { return thread.error != 0; });
  if (!alone || failed != saved_.end()) {
    grant_ = {Grant::Outcome::refused,
              alone ? std::strerror(failed->error)
                    : fmt::format("{} worker threads cannot be had here", count)};
    restore();
    return;
  }
  allow(0, set_of(processors));
  grant_ = {Grant::Outcome::granted,
            fmt::format("{} threads on processors {}", count,
                        fmt::join(processors.begin(), processors.begin() + count, ", "))};
}

PinnedThreads::~PinnedThreads() {
  if (!saved_.empty()) restore();
}

void PinnedThreads::restore() {
  // In reverse order: if a thread was saved twice, the first record has its original affinity.
  for (auto saved = saved_.rbegin(); saved != saved_.rend(); ++saved)
    if (tgkill(getpid(), saved->thread, 0) == 0)  // the thread still exists
      allow(saved->thread, saved->processors);
  saved_.clear();
  some_are_pinned = false;
}

}  // namespace ebb
