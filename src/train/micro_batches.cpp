#include "train/micro_batches.h"

#include <fmt/core.h>

#include <algorithm>

#include "ebb/error.h"

namespace ebb {

std::vector<MicroBatch> micro_batches(const Batch& whole, std::int64_t parts) {
  if (parts == 1) return {{whole, 1.0}};
  std::int64_t items = -1;
  for (const Tensor& t : whole.tensors) {
    const std::int64_t count = t.rank() > 0 ? t.shape()[0] : 0;
    if (items >= 0 && count != items)
      throw ShapeError(
          fmt::format("to be cut into micro-batches, all tensors of a batch must have as "
                      "many items, but {} and {} came",
                      items, count));
    items = count;
  }
  parts = std::max<std::int64_t>(1, std::min(parts, items));
  std::vector<MicroBatch> result;
  for (std::int64_t i = 0, begin = 0; i < parts; ++i) {
    const std::int64_t end = begin + items / parts + (i < items % parts ? 1 : 0);
    MicroBatch part;
    for (const Tensor& t : whole.tensors) part.batch.tensors.push_back(slice(t, 0, begin, end));
    part.share = static_cast<double>(end - begin) / static_cast<double>(items);
    result.push_back(std::move(part));
    begin = end;
  }
  return result;
}

std::vector<MicroBatch> equal_parts(const std::vector<Batch>& batches) {
  std::vector<MicroBatch> result;
  for (const Batch& batch : batches)
    result.push_back({batch, 1.0 / static_cast<double>(batches.size())});
  return result;
}

}  // namespace ebb
