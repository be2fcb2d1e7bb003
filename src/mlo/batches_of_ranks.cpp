#include "mlo/batches_of_ranks.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "ebb/error.h"
#include "ebb/node.h"
#include "ebb/storage.h"

namespace ebb::mlo {

Communicator& connected(Communicator* communicator) {
  if (!communicator) throw ValueError("an engine on several ranks has no communicator");
  return *communicator;
}

Tensor whole_of_ranks(const Tensor& part, const RankOptions& options, Communicator* communicator) {
  if (options.count == 1) return part;
  const LeafBlocks blocks = LeafBlocks::of(options);
  const auto size = static_cast<std::size_t>(part.type().bytes().count),
             leaf = size / static_cast<std::size_t>(blocks.per_rank());
  std::vector<std::byte> own(size), all(size * static_cast<std::size_t>(options.count));
  part.node()->storage()->read(own);
  connected(communicator).all_gather(own, all, "the batches of a checkpoint");
  std::vector<std::byte> whole(leaf * static_cast<std::size_t>(blocks.leaves));
  for (std::int64_t i = 0; i < blocks.leaves; ++i) {
    const LeafBlocks::Seat seat = blocks.seat(i);
    const std::size_t from =
        static_cast<std::size_t>(seat.rank) * size + static_cast<std::size_t>(seat.place) * leaf;
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(from), leaf,
                whole.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(i) * leaf));
  }
  TensorType type = part.type();
  type.shape[0] = type.shape[0] / blocks.per_rank() * blocks.leaves;
  return Tensor::from_bytes(whole, type);
}

Tensor part_of_rank(std::span<const std::byte> whole, const TensorType& type,
                    const RankOptions& options) {
  if (options.count == 1) return Tensor::from_bytes({whole.begin(), whole.end()}, type);
  const LeafBlocks blocks = LeafBlocks::of(options);
  if (type.shape.rank() == 0 || type.shape[0] % blocks.leaves != 0)
    throw ShapeError(fmt::format("a batch of {} cannot be divided into {} leaves",
                                 to_string(type.shape), blocks.leaves));
  const std::size_t leaf = whole.size() / static_cast<std::size_t>(blocks.leaves);
  std::vector<std::byte> own;
  for (std::int64_t place = 0; place < blocks.per_rank(); ++place) {
    const auto at = static_cast<std::size_t>(blocks.leaf(options.rank, place)) * leaf;
    own.insert(own.end(), whole.begin() + static_cast<std::ptrdiff_t>(at),
               whole.begin() + static_cast<std::ptrdiff_t>(at + leaf));
  }
  TensorType part = type;
  part.shape[0] = type.shape[0] / blocks.leaves * blocks.per_rank();
  return Tensor::from_bytes(own, part);
}

}  // namespace ebb::mlo
