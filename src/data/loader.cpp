#include "ebb/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
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
  // A batch, or why there is none.
  struct Made {
    Batch batch;
    std::exception_ptr error;
  };

  DatasetPtr dataset;
  LoaderOptions options;
  std::int64_t items, batches;
  std::int64_t epoch = 0, position = 0;  // of the batch that next() gives

  // Used by whoever makes batches: the thread while it runs, else next().
  std::int64_t ahead_epoch = 0, ahead_position = 0;
  std::int64_t ordered_epoch = -1;  // whose order `order` is
  std::vector<std::int64_t> order;

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::deque<Made> made;
  bool stop = false;
  std::thread thread;

  Worker(DatasetPtr d, LoaderOptions o)
      : dataset(std::move(d)), options(o), items(dataset->size()) {
    require(options.batch > 0, "Loader",
            fmt::format("a batch needs at least one item, but {} came", options.batch));
    require(options.prefetch >= 0, "Loader",
            fmt::format("prefetch cannot be negative, but {} came", options.prefetch));
    require(items > 0, "Loader", "the dataset has no items");
    batches = items / options.batch;
    if (options.last == LastBatch::keep && items % options.batch != 0) ++batches;
    require(batches > 0, "Loader",
            fmt::format("no batch of {} can be had from {} items when the last one is dropped",
                        options.batch, items));
  }

  ~Worker() { halt(); }

  Made make() {
    try {
      const std::int64_t begin = ahead_position * options.batch;
      const auto count = static_cast<std::size_t>(std::min(options.batch, items - begin));
      const RandomState augmentation{mix(options.seed ^ augmentation_salt),
                                     static_cast<std::uint64_t>(ahead_epoch)};
      Made result;
      if (options.shuffle) {
        if (ordered_epoch != ahead_epoch) {
          order.resize(static_cast<std::size_t>(items));
          std::iota(order.begin(), order.end(), 0);
          data::shuffle(order, options.seed, ahead_epoch);
          ordered_epoch = ahead_epoch;
        }
        result.batch = dataset->batch(
            std::span(order).subspan(static_cast<std::size_t>(begin), count), augmentation);
      } else {
        order.resize(count);
        std::iota(order.begin(), order.end(), begin);
        result.batch = dataset->batch(order, augmentation);
      }
      if (++ahead_position == batches) ++ahead_epoch, ahead_position = 0;
      return result;
    } catch (...) {
      return {{}, std::current_exception()};
    }
  }

  // Waits for room before it makes a batch, so that no more than `prefetch` are ever there.
  void run() {
    for (;;) {
      {
        std::unique_lock lock(mutex);
        changed.wait(
            lock, [&] { return stop || made.size() < static_cast<std::size_t>(options.prefetch); });
        if (stop) return;
      }
      Made next = make();
      const bool failed = next.error != nullptr;
      {
        const std::lock_guard lock(mutex);
        made.push_back(std::move(next));
      }
      changed.notify_all();
      if (failed) return;
    }
  }

  void halt() {
    if (thread.joinable()) {
      {
        const std::lock_guard lock(mutex);
        stop = true;
      }
      changed.notify_all();
      thread.join();
    }
    stop = false;
    made.clear();
  }

  Batch next() {
    if (options.prefetch > 0 && !thread.joinable()) thread = std::thread([this] { run(); });
    Made taken;
    {
      std::unique_lock lock(mutex);
      if (options.prefetch == 0 && made.empty()) made.push_back(make());
      changed.wait(lock, [&] { return !made.empty(); });
      // An error stays there for later calls.
      if (made.front().error) std::rethrow_exception(made.front().error);
      taken = std::move(made.front());
      made.pop_front();
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
  w.ahead_epoch = w.epoch = state.epoch;
  w.ahead_position = w.position = state.position;
}

}  // namespace ebb::data
