#include <fmt/core.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "core/piece_engine.h"
#include "ebb/error.h"

namespace ebb {
namespace {

using Clock = std::chrono::steady_clock;

// By bench/disk.cpp one thread reaches three quarters of a disk's rate, as the disk is idle between
// two calls; two to four reach all of it, and more gain nothing.
constexpr int thread_count = 4;
constexpr int queued = 32;  // pieces, including those in progress

// First in, first out, at most `queued`.
template <class T>
class Queue {
 public:
  bool empty() const { return count_ == 0; }
  void push(const T& item) { items_[(first_ + count_++) % queued] = item; }
  T pop() {
    const T item = items_[first_];
    first_ = (first_ + 1) % queued;
    --count_;
    return item;
  }

 private:
  std::array<T, queued> items_{};
  std::size_t first_ = 0, count_ = 0;
};

// New threads inherit the mask: signals are for the program's own threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

class PieceThreads final : public PieceEngine {
 public:
  explicit PieceThreads(const UnnamedFile& file) : file_(file) {
    const SignalsBlocked blocked;
    threads_.reserve(thread_count);
    try {
      while (threads_.size() < thread_count) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& refused) {
      if (threads_.empty())
        throw Error(
            fmt::format("cannot start a thread for reading and writing the offload file in {}: {}",
                        file.folder().string(), refused.what()));
    }
  }

  ~PieceThreads() override {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    wanted_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::string_view name() const override { return "threads"; }
  int capacity() const override { return queued; }

  void start(int number, const Piece& piece) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      wanted_pieces_.push({number, piece});
    }
    wanted_.notify_one();
  }
  void flush() noexcept override {}

  std::optional<PieceEnd> poll() noexcept override {
    const std::lock_guard lock(mutex_);
    if (ended_pieces_.empty()) return std::nullopt;
    return ended_pieces_.pop();
  }

  PieceEnd wait() noexcept override {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return !ended_pieces_.empty(); });
    return ended_pieces_.pop();
  }

 private:
  struct Wanted {
    int number = 0;
    Piece piece;
  };

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wanted_.wait(lock, [&] { return stopped_ || !wanted_pieces_.empty(); });
      if (wanted_pieces_.empty()) return;
      const Wanted wanted = wanted_pieces_.pop();
      lock.unlock();
      const std::int64_t result = move(wanted.piece);
      const Clock::time_point now = Clock::now();
      lock.lock();
      ended_pieces_.push({wanted.number, result, now});
      ended_.notify_one();
    }
  }

  std::int64_t move(const Piece& piece) const {
    const auto size = static_cast<std::size_t>(piece.size.count);
    const bool reads = piece.direction == Direction::read;
    const ssize_t moved = reads
                              ? pread(file_.descriptor(), piece.memory, size, piece.offset.count)
                              : pwrite(file_.descriptor(), piece.memory, size, piece.offset.count);
    if (moved < 0) return -errno;
    if (!reads)
      if (const int error = file_.flush_written(piece.offset, {moved}); error != 0) return -error;
    file_.drop_cached(piece.offset, {moved});
    return moved;
  }

  const UnnamedFile& file_;
  std::mutex mutex_;
  std::condition_variable wanted_, ended_;
  Queue<Wanted> wanted_pieces_;
  Queue<PieceEnd> ended_pieces_;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<PieceEngine> make_piece_threads(const UnnamedFile& file) {
  return std::make_unique<PieceThreads>(file);
}

}  // namespace ebb
