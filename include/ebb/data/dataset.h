// A source of batches: a fixed number of items, any subset of which can form a batch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ebb/random.h"
#include "ebb/train/train_step.h"

namespace ebb::data {

enum class Split { train, test };

// Const calls may come from several threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;

  // The types of a batch of this many items.
  virtual std::vector<TensorType> types(std::int64_t batch) const = 0;

  // The same items and the same state give the same bits. Random augmentation of an item depends
  // only on the state and the item, never on the rest of the batch.
  virtual Batch batch(std::span<const std::int64_t> items, RandomState augmentation) const = 0;
};

using DatasetPtr = std::shared_ptr<const Dataset>;

// Some items of another dataset, under new numbers.
class Subset : public Dataset {
 public:
  Subset(DatasetPtr whole, std::vector<std::int64_t> items);
  static std::shared_ptr<Subset> range(DatasetPtr whole, std::int64_t begin, std::int64_t end);

  std::int64_t size() const override { return static_cast<std::int64_t>(items_.size()); }
  std::vector<TensorType> types(std::int64_t batch) const override { return whole_->types(batch); }
  Batch batch(std::span<const std::int64_t> items, RandomState augmentation) const override;

 private:
  DatasetPtr whole_;
  std::vector<std::int64_t> items_;
};

}  // namespace ebb::data
