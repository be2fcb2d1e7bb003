// Collectives: ops that need all ranks of a run. A graph with them is the same on every rank; which
// rank runs it is known when kernels are bound (`bind_collective`).
//
// A tensor of n elements that is divided among ranks is a flat row of ranges, one for each rank,
// all of `range_elements` elements; the last ranges are filled up with zeros.
//
// Sums are reproducible. They run over `blocks` tensors of the whole run: rank r has numbers r ·
// inputs to (r + 1) · inputs - 1, and the `blocks` tensors from number `first` on are summed. The
// sum of n tensors is the sum of the first p plus the sum of the others, where p is the largest
// power of two below n, whichever rank has which tensor.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "ebb/communicator.h"
#include "ebb/op.h"

namespace ebb {

namespace cuda {
class RankLink;
}

struct CollectiveAttributes {
  std::int64_t ranks = 1;
  std::int64_t blocks = 1;  // of sums
  Shape shape = {};         // of a gathered tensor
  std::int64_t first = 0;   // of the blocks of a sum
  Reduce reduce = Reduce::exact;
  bool operator==(const CollectiveAttributes&) const = default;
  void visit(auto&& field) {
    field("ranks", ranks);
    field("blocks", blocks);
    field("shape", shape);
    field("first", first);
    constexpr std::string_view names[] = {"exact", "fast"};
    field.choice("reduce", reduce, names);
  }
};

// Ranges are whole multiples of this many elements, so that neither the blocks of quantised state
// (256 or 128 elements) nor the pieces of a norm lie in two ranges: their bits do not depend on the
// ranks.
inline constexpr std::int64_t range_alignment = 256;
// Elements of one range.
std::int64_t range_elements(std::int64_t elements, std::int64_t ranks);
// The largest power of two below n, which is at least 2: where the tree of a sum divides.
std::int64_t tree_split(std::int64_t n);

const Op& all_reduce_op();      // blocks -> their sum
const Op& reduce_scatter_op();  // blocks -> this rank's range of their sum
const Op& all_gather_op();      // ranges, by rank -> a tensor of `shape`
const Op& own_range_op();       // a tensor that every rank has -> this rank's range of it

Tensor all_reduce(const std::vector<Tensor>& own_blocks, std::int64_t ranks, std::int64_t blocks,
                  std::int64_t first = 0, Reduce reduce = Reduce::exact);
Tensor reduce_scatter(const std::vector<Tensor>& own_blocks, std::int64_t ranks,
                      std::int64_t blocks, std::int64_t first = 0, Reduce reduce = Reduce::exact);
Tensor all_gather(const Tensor& range, const Shape& shape, std::int64_t ranks);
// `after` is not read: it delays the copy until that tensor exists. Otherwise the copy would be
// made at the beginning of a step and kept until it is used.
Tensor own_range(const Tensor& x, std::int64_t ranks, const Tensor& after = {});

bool is_collective(const Op& op);

// The bytes that a rank sends in one call, and the number of exchanges; the time is predicted from
// these.
struct LinkUse {
  Bytes sent;
  std::int64_t exchanges = 0;
};
LinkUse link_use(const Op& op, std::span<const TensorType> inputs,
                 std::span<const TensorType> outputs, const CollectiveAttributes& a,
                 Device::Kind kind);

// The kernel for a rank. Without a communicator it can be described, and run if there is one rank.
// `path` names the call in errors.
Kernel bind_collective(const KernelRequest& request, const CollectiveAttributes& a,
                       Communicator* communicator, const std::string& path);
// The same on a GPU; what is launched can be captured in a graph. An error in a build without CUDA.
Kernel bind_collective_on_gpu(const KernelRequest& request, const CollectiveAttributes& a,
                              const std::shared_ptr<cuda::RankLink>& link);
Kernel bind_collective_cuda(const KernelRequest& request, const CollectiveAttributes& a,
                            const std::shared_ptr<cuda::RankLink>& link);
Kernel bind_collective_alone_cuda(const KernelRequest& request, const CollectiveAttributes& a);

// An error unless a call that is about to run has the number of ranks that it was made for; 0:
// there is no communicator.
void require_ranks(const Op& op, const CollectiveAttributes& a, int present);
// An error if a rank has more blocks than its kernel can take.
void require_few_blocks(const Op& op, std::int64_t blocks, std::int64_t most);

}  // namespace ebb
