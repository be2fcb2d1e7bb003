// Batches of a dataset, epoch after epoch, prepared ahead by threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ebb/data/dataset.h"

namespace ebb::data {

// Whether the incomplete last batch of an epoch is used.
enum class LastBatch { keep, drop };

struct LoaderOptions {
  std::int64_t batch = 32;
  bool shuffle = true;
  std::uint64_t seed = 0;
  LastBatch last = LastBatch::keep;  // a smaller batch has other shapes, so a program of its own
  int prefetch = 2;                  // batches in memory ahead of the one asked for; 0: no thread
  int workers = 1;                   // threads, each on a batch of its own; no more than prefetch
};

class Loader {
 public:
  // The position of a loader, from which it continues with the same bits.
  struct State {
    std::uint64_t seed = 0;
    std::int64_t epoch = 0;
    std::int64_t position = 0;  // batches of the epoch already given
    std::int64_t items = 0;     // of the dataset
    std::int64_t batch = 0;     // items
    friend bool operator==(const State&, const State&) = default;
  };

  explicit Loader(DatasetPtr dataset, LoaderOptions options = {});
  ~Loader();
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;

  // The next batch; after the last batch of an epoch, the first of the next epoch. An error while a
  // batch is prepared is thrown here, by every call until restore().
  Batch next();
  // Waits until the next batch is ready, and throws here what next() would throw.
  void prepare();

  std::int64_t epoch() const;     // of the batch that next() gives
  std::int64_t position() const;  // of that batch in its epoch
  std::int64_t batches() const;   // of an epoch

  // The types of every kind of batch that next() returns, the most frequent first.
  std::vector<std::vector<TensorType>> types() const;

  State save() const;

  // The seed comes from the state; the numbers of items and of items per batch must equal the
  // loader's.
  void restore(const State& state);

 private:
  struct Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace ebb::data
