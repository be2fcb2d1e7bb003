#include "ebb/data/part.h"

#include <fmt/core.h>

#include "data/items.h"

namespace ebb::data {
namespace {

class Part : public Dataset {
 public:
  Part(DatasetPtr whole, std::int64_t batch, const RankOptions& options)
      : whole_(std::move(whole)), batch_(batch), own_(own_items(batch, options)) {
    const LeafBlocks blocks = LeafBlocks::of(options);
    const std::int64_t items = batch / blocks.leaves;
    for (std::int64_t place = 0; place < blocks.per_rank(); ++place)
      for (std::int64_t i = 0; i < items; ++i)
        places_.push_back(blocks.leaf(options.rank, place) * items + i);
  }

  std::int64_t size() const override { return whole_->size(); }
  std::vector<TensorType> types(std::int64_t batch) const override {
    require_whole(batch);
    return whole_->types(own_);
  }
  Batch batch(std::span<const std::int64_t> items, RandomState augmentation) const override {
    require_whole(static_cast<std::int64_t>(items.size()));
    std::vector<std::int64_t> own;
    for (const std::int64_t place : places_) own.push_back(items[static_cast<std::size_t>(place)]);
    return whole_->batch(own, augmentation);
  }

 private:
  void require_whole(std::int64_t batch) const {
    require(batch == batch_, "Part",
            fmt::format("ranks share batches of {} items, but one of {} came", batch_, batch));
  }

  DatasetPtr whole_;
  std::int64_t batch_, own_;
  std::vector<std::int64_t> places_;  // in a batch, of this rank's items
};

}  // namespace

std::int64_t own_items(std::int64_t batch, const RankOptions& options) {
  const LeafBlocks blocks = LeafBlocks::of(options);
  require(batch % blocks.leaves == 0, "Part",
          fmt::format("a batch of {} items cannot be divided into {} leaves of equal size", batch,
                      blocks.leaves));
  return batch / blocks.leaves * blocks.per_rank();
}

DatasetPtr part_of_batches(DatasetPtr whole, std::int64_t batch, const RankOptions& options) {
  return std::make_shared<Part>(std::move(whole), batch, options);
}

}  // namespace ebb::data
