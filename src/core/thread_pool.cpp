#include "core/thread_pool.h"

#include <omp.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace ebb {
namespace {

thread_local bool inside_task = false;

class Pool {
 public:
  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    start_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // False when another thread is using the pool.
  bool try_run(int count, PoolTask task, const void* body) {
    const std::unique_lock owner(owner_, std::try_to_lock);
    if (!owner) return false;
    {
      const std::lock_guard lock(mutex_);
      while (static_cast<int>(threads_.size()) < count - 1)
        threads_.emplace_back([this, index = static_cast<int>(threads_.size()) + 1, seen = round_] {
          work(index, seen);
        });
      task_ = task, body_ = body, count_ = count, unfinished_ = count - 1;
      ++round_;
    }
    start_.notify_all();
    inside_task = true;
    task(body, 0);
    inside_task = false;
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return unfinished_ == 0; });
    return true;
  }

 private:
  // Thread `index` runs item `index` of every round with more items than that.
  void work(int index, std::uint64_t seen) {
    omp_set_num_threads(1);  // libraries called from a task do not start teams of their own
    inside_task = true;
    std::unique_lock lock(mutex_);
    while (true) {
      start_.wait(lock, [&] { return stopping_ || round_ != seen; });
      if (stopping_) return;
      seen = round_;
      if (index >= count_) continue;
      const PoolTask task = task_;
      const void* body = body_;
      lock.unlock();
      task(body, index);
      lock.lock();
      if (--unfinished_ == 0) done_.notify_one();
    }
  }

  std::mutex owner_;  // held by the thread whose tasks are running
  std::mutex mutex_;  // guards what follows
  std::condition_variable start_, done_;
  std::vector<std::thread> threads_;
  PoolTask task_ = nullptr;
  const void* body_ = nullptr;
  int count_ = 0, unfinished_ = 0;
  std::uint64_t round_ = 0;
  bool stopping_ = false;
};

}  // namespace

void run_on_pool(int count, PoolTask task, const void* body) {
  static Pool pool;
  if (!inside_task && pool.try_run(count, task, body)) return;
  for (int i = 0; i < count; ++i) task(body, i);
}

}  // namespace ebb
