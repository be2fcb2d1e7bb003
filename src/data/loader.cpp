#include "ebb/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "data/draws.h"
#include "data/items.h"

namespace ebb::data {
namespace {

constexpr std::uint64_t shuffle_stream = 0x73687566666C65ull;
constexpr std::uint64_t augmentation_salt = 0x6175676D656E74ull;

// Fisher and Yates; the order of an epoch depends on seed and epoch alone.
void shuffle(std::vector<std::int64_t>& order, std::uint64_t seed, std::int64_t epoch) {
  Draws draws({seed, static_cast<std::uint64_t>(epoch)}, shuffle_stream);
  for (std::size_t left = order.size(); left > 1; --left)
    std::swap(order[left - 1], order[draws.below(left)]);
}

}  // namespace

struct Loader::Worker {
  // A batch, or the error in preparing it.
  struct Made {
    Batch batch;
    std::exception_ptr error;
  };

  // A batch to be made.
  struct Task {
    std::int64_t number = 0, epoch = 0, position = 0;
    std::shared_ptr<const std::vector<std::int64_t>> order;  // of the epoch; null: as they are
  };

  DatasetPtr dataset;
  LoaderOptions options;
  std::int64_t items, batches;
  std::int64_t epoch = 0, position = 0;  // of the batch that next() gives

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::int64_t given = 0;             // batches, since the threads were started
  Task ahead;                         // the next to be made
  std::int64_t ordered_epoch = -1;    // the epoch whose order `ahead` has
  std::map<std::int64_t, Made> made;  // by number
  bool stop = false;                  // also after an error
  std::vector<std::thread> threads;

  Worker(DatasetPtr d, LoaderOptions o)
      : dataset(std::move(d)), options(o), items(dataset->size()) {
    require(options.batch > 0, "Loader",
            fmt::format("a batch needs at least one item, but {} came", options.batch));
    require(options.prefetch >= 0, "Loader",
            fmt::format("prefetch cannot be negative, but {} came", options.prefetch));
    require(options.workers > 0, "Loader",
            fmt::format("at least one worker is expected, but {} came", options.workers));
    require(items > 0, "Loader", "the dataset has no items");
    batches = items / options.batch;
    if (options.last == LastBatch::keep && items % options.batch != 0) ++batches;
    require(batches > 0, "Loader",
            fmt::format("no batch of {} can be had from {} items when the last one is dropped",
                        options.batch, items));
  }

  ~Worker() { halt(); }

  // The mutex is held.
  Task take() {
    if (options.shuffle && ordered_epoch != ahead.epoch) {
      std::vector<std::int64_t> order(static_cast<std::size_t>(items));
      std::iota(order.begin(), order.end(), 0);
      shuffle(order, options.seed, ahead.epoch);
      ahead.order = std::make_shared<const std::vector<std::int64_t>>(std::move(order));
      ordered_epoch = ahead.epoch;
    }
    const Task task = ahead;
    ++ahead.number;
    if (++ahead.position == batches) ++ahead.epoch, ahead.position = 0;
    return task;
  }

  Made make(const Task& task) const {
    try {
      const std::int64_t begin = task.position * options.batch;
      const auto count = static_cast<std::size_t>(std::min(options.batch, items - begin));
      const RandomState augmentation{mix(options.seed ^ augmentation_salt),
                                     static_cast<std::uint64_t>(task.epoch)};
      if (task.order)
        return {
            dataset->batch(std::span(*task.order).subspan(static_cast<std::size_t>(begin), count),
                           augmentation),
            {}};
      std::vector<std::int64_t> own(count);
      std::iota(own.begin(), own.end(), begin);
      return {dataset->batch(own, augmentation), {}};
    } catch (...) {
      return {{}, std::current_exception()};
    }
  }

  // Waits for room before it takes a task, so that at most `prefetch` batches exist.
  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stop || ahead.number - given < options.prefetch; });
      if (stop) return;
      const Task task = take();
      lock.unlock();
      Made result = make(task);
      lock.lock();
      stop = stop || result.error != nullptr;
      made.emplace(task.number, std::move(result));
      changed.notify_all();
    }
  }

  void start() {
    for (int i = 0; i < std::min(options.workers, options.prefetch); ++i)
      threads.emplace_back([this] { run(); });
  }

  void halt() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    changed.notify_all();
    for (std::thread& thread : threads) thread.join();
    threads.clear();
    made.clear();
    stop = false;
    given = ahead.number = 0;
  }

  // The next batch, which stays in place. The mutex is held by `lock`.
  Made& wait_for_next(std::unique_lock<std::mutex>& lock) {
    if (threads.empty() && !made.contains(given)) {
      const Task task = take();
      made.emplace(task.number, make(task));
    }
    changed.wait(lock, [&] { return made.contains(given); });
    Made& first = made.at(given);
    // An error stays in place for later calls.
    if (first.error) std::rethrow_exception(first.error);
    return first;
  }

  void prepare() {
    if (threads.empty()) start();
    std::unique_lock lock(mutex);
    wait_for_next(lock);
  }

  Batch next() {
    if (threads.empty()) start();
    Made taken;
    {
      std::unique_lock lock(mutex);
      taken = std::move(wait_for_next(lock));
      made.erase(given++);
    }
    changed.notify_all();
    if (++position == batches) ++epoch, position = 0;
    return std::move(taken.batch);
  }
};

Loader::Loader(DatasetPtr dataset, LoaderOptions options) {
  require(dataset != nullptr, "Loader", "a dataset is expected, but none came");
  worker_ = std::make_unique<Worker>(std::move(dataset), options);
}
Loader::~Loader() = default;
Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&&) noexcept = default;

Batch Loader::next() { return worker_->next(); }
void Loader::prepare() { worker_->prepare(); }
std::int64_t Loader::epoch() const { return worker_->epoch; }
std::int64_t Loader::position() const { return worker_->position; }
std::int64_t Loader::batches() const { return worker_->batches; }

std::vector<std::vector<TensorType>> Loader::types() const {
  const std::int64_t full = worker_->items / worker_->options.batch;
  std::vector<std::vector<TensorType>> result;
  if (full > 0) result.push_back(worker_->dataset->types(worker_->options.batch));
  if (worker_->batches > full)
    result.push_back(worker_->dataset->types(worker_->items - full * worker_->options.batch));
  return result;
}

Loader::State Loader::save() const {
  const Worker& w = *worker_;
  return {w.options.seed, w.epoch, w.position, w.items, w.options.batch};
}

void Loader::restore(const State& state) {
  Worker& w = *worker_;
  require(state.items == w.items && state.batch == w.options.batch, "Loader",
          fmt::format("the state is of {} items in batches of {}, but this loader has {} in "
                      "batches of {}",
                      state.items, state.batch, w.items, w.options.batch));
  require(state.epoch >= 0 && state.position >= 0 && state.position < w.batches, "Loader",
          fmt::format("there is no batch {} of {} in epoch {}", state.position, w.batches,
                      state.epoch));
  w.halt();
  w.options.seed = state.seed;
  w.ordered_epoch = -1;
  w.ahead.epoch = w.epoch = state.epoch;
  w.ahead.position = w.position = state.position;
}

}  // namespace ebb::data
