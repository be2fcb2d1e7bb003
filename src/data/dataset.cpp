#include "ebb/data/dataset.h"

#include <algorithm>
#include <numeric>

#include "data/items.h"

namespace ebb::data {

Subset::Subset(DatasetPtr whole, std::vector<std::int64_t> items)
    : whole_(std::move(whole)), items_(std::move(items)) {
  require(whole_ != nullptr, "Subset", "a dataset is expected, but none came");
  check_items("Subset", items_, whole_->size());
}

std::shared_ptr<Subset> Subset::range(DatasetPtr whole, std::int64_t begin, std::int64_t end) {
  require(whole != nullptr, "Subset", "a dataset is expected, but none came");
  require(
      0 <= begin && begin <= end && end <= whole->size(), "Subset",
      fmt::format("items [{}, {}) were asked for, but there are {}", begin, end, whole->size()));
  std::vector<std::int64_t> items(static_cast<std::size_t>(end - begin));
  std::iota(items.begin(), items.end(), begin);
  return std::make_shared<Subset>(std::move(whole), std::move(items));
}

Batch Subset::batch(std::span<const std::int64_t> items, RandomState augmentation) const {
  check_items("Subset", items, size());
  std::vector<std::int64_t> of_whole(items.size());
  std::transform(items.begin(), items.end(), of_whole.begin(),
                 [&](std::int64_t item) { return items_[static_cast<std::size_t>(item)]; });
  return whole_->batch(of_whole, augmentation);
}

}  // namespace ebb::data
