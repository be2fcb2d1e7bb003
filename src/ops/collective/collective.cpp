#include "ops/collective/collective.h"

#include <fmt/core.h>

#include <algorithm>

#include "ebb/bytes.h"
#include "ebb/error.h"
#include "ebb/node.h"
#include "ebb/ops.h"
#include "ops/collective/pieces.h"
#include "ops/cuda_kernels.h"

namespace ebb {
namespace {

void check_ranks(const Call& call, const CollectiveAttributes& a) {
  if (a.ranks < 1)
    call.fail_value(fmt::format("the number of ranks must be at least 1, but is {}", a.ranks));
}

// Inputs: this rank's blocks, all of one type.
void check_blocks(const Call& call, const CollectiveAttributes& a) {
  check_ranks(call, a);
  if (call.count() < 1) call.fail_value("needs a tensor, but none came");
  call.require_floating(0);
  for (int i = 1; i < call.count(); ++i)
    if (call.inputs[static_cast<std::size_t>(i)] != call.inputs[0])
      call.fail_shape(fmt::format("all blocks must have one type, but block {} is {}", i,
                                  to_string(call.inputs[static_cast<std::size_t>(i)])));
  if (a.blocks < 1 || a.first < 0 || a.blocks > a.ranks * call.count() - a.first)
    call.fail_value(fmt::format("{} ranks with {} blocks each cannot have {} from number {} on",
                                a.ranks, call.count(), a.blocks, a.first));
}

Shape range_shape(const Call& call, const CollectiveAttributes& a) {
  return {range_elements(call.shape(0).elements(), a.ranks)};
}

Kernel bind_alone(const KernelRequest& request, const CollectiveAttributes& a) {
  return bind_collective(request, a, nullptr, {});
}

Cost cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
          const CollectiveAttributes& a) {
  Cost cost = default_cost(inputs, outputs, 0.0);
  // Received data is written to memory and read again: the other ranks' parts of this rank's range,
  // one for each block, or their ranges of the whole; for all_reduce both.
  const bool gathers = a.shape.rank() > 0, both = !gathers && inputs[0].shape == outputs[0].shape;
  const TensorType& whole = inputs[0];
  const Bytes range = gathers
                          ? whole.bytes()  // the input is a range
                          : range_elements(whole.shape.elements(), a.ranks) * size_of(whole.dtype);
  const std::int64_t received = static_cast<std::int64_t>(inputs.size()) + (both ? 1 : 0);
  cost.moved += 2 * (a.ranks - 1) * (received * range);
  return cost;
}

OpSpec<CollectiveAttributes> collective(std::string_view name, std::string_view summary) {
  OpSpec<CollectiveAttributes> spec{.name = name, .summary = summary};
  spec.cpu = bind_alone;
  spec.cuda = EBB_CUDA_KERNEL(bind_collective_alone_cuda);
  spec.cost = cost;
  spec.recomputable = false;  // the summed blocks are freed
  return spec;
}

// A sum reaches every rank, so the gradient of a block is the sum of the gradients of all ranks.
// All blocks of one rank have the same gradient.
std::vector<Tensor> repeated(const Tensor& gradient, int count) {
  return std::vector<Tensor>(static_cast<std::size_t>(count), gradient);
}

}  // namespace

std::int64_t range_elements(std::int64_t elements, std::int64_t ranks) {
  const std::int64_t least = (elements + ranks - 1) / ranks;
  return (least + range_alignment - 1) / range_alignment * range_alignment;
}

std::int64_t tree_split(std::int64_t n) {
  std::int64_t p = 1;
  while (2 * p < n) p *= 2;
  return p;
}

const Op& all_reduce_op() {
  static const TypedOp<CollectiveAttributes> op([] {
    auto spec = collective("all_reduce", "the sum of tensors of all ranks, in a fixed order");
    spec.infer = [](const Call& call, const CollectiveAttributes& a) {
      check_blocks(call, a);
      return std::vector{call.inputs[0]};
    };
    spec.gradient = [](const GradientCall& call, const CollectiveAttributes& a) {
      return repeated(all_reduce({call.grad()}, a.ranks, a.ranks, 0, a.reduce), call.input_count());
    };
    spec.in_place = {{.output = 0, .input = 0}};
    return spec;
  }());
  return op;
}

const Op& reduce_scatter_op() {
  static const TypedOp<CollectiveAttributes> op([] {
    auto spec =
        collective("reduce_scatter", "this rank's range of the sum of tensors of all ranks");
    spec.infer = [](const Call& call, const CollectiveAttributes& a) {
      check_blocks(call, a);
      return std::vector<TensorType>{{range_shape(call, a), call.dtype(0)}};
    };
    spec.gradient = [](const GradientCall& call, const CollectiveAttributes& a) {
      return repeated(all_gather(call.grad(), call.input_type(0).shape, a.ranks),
                      call.input_count());
    };
    return spec;
  }());
  return op;
}

const Op& all_gather_op() {
  static const TypedOp<CollectiveAttributes> op([] {
    auto spec = collective("all_gather", "a tensor whose ranges the ranks have");
    spec.infer = [](const Call& call, const CollectiveAttributes& a) {
      check_ranks(call, a);
      if (call.count() != 1) call.fail_shape("takes one range");
      call.require_rank(0, 1);
      if (a.shape.elements() > a.ranks * call.shape(0)[0])
        call.fail_shape(fmt::format("{} ranges of {} elements are too few for {}", a.ranks,
                                    call.shape(0)[0], to_string(a.shape)));
      return std::vector<TensorType>{{a.shape, call.dtype(0)}};
    };
    spec.gradient = [](const GradientCall& call, const CollectiveAttributes& a) {
      if (call.input_type(0).shape[0] != range_elements(a.shape.elements(), a.ranks))
        throw ValueError("[all_gather] only whole ranges have a gradient");
      return std::vector{reduce_scatter({call.grad()}, a.ranks, a.ranks, 0, a.reduce)};
    };
    // All ranks have the same plan, so all gather again at the same place.
    spec.recomputable = true;
    return spec;
  }());
  return op;
}

// It has no gradient, because that would be a tensor of which each rank has a different part.
const Op& own_range_op() {
  static const TypedOp<CollectiveAttributes> op([] {
    auto spec = collective("own_range", "this rank's range of a tensor that every rank has");
    spec.infer = [](const Call& call, const CollectiveAttributes& a) {
      check_ranks(call, a);
      if (call.count() != 1 && call.count() != 2)
        call.fail_shape("takes a tensor, and one that must exist first");
      return std::vector<TensorType>{{range_shape(call, a), call.dtype(0)}};
    };
    spec.gradient = [](const GradientCall&, const CollectiveAttributes&) -> std::vector<Tensor> {
      throw ValueError("[own_range] has no gradient: each rank would have another part of it");
    };
    spec.cost = nullptr;
    spec.operations = 0.0;
    spec.recomputable = true;
    return spec;
  }());
  return op;
}

Tensor all_reduce(const std::vector<Tensor>& own_blocks, std::int64_t ranks, std::int64_t blocks,
                  std::int64_t first, Reduce reduce) {
  return apply1(all_reduce_op(), own_blocks,
                CollectiveAttributes{ranks, blocks, {}, first, reduce});
}
Tensor reduce_scatter(const std::vector<Tensor>& own_blocks, std::int64_t ranks,
                      std::int64_t blocks, std::int64_t first, Reduce reduce) {
  return apply1(reduce_scatter_op(), own_blocks,
                CollectiveAttributes{ranks, blocks, {}, first, reduce});
}
Tensor all_gather(const Tensor& range, const Shape& shape, std::int64_t ranks) {
  return apply1(all_gather_op(), {range}, CollectiveAttributes{ranks, 1, shape});
}
Tensor own_range(const Tensor& x, std::int64_t ranks, const Tensor& after) {
  return apply1(own_range_op(), after ? std::vector{x, after} : std::vector{x},
                CollectiveAttributes{ranks, 1, {}});
}

bool is_collective(const Op& op) {
  return &op == &all_reduce_op() || &op == &reduce_scatter_op() || &op == &all_gather_op() ||
         &op == &own_range_op();
}

Kernel bind_collective_on_gpu([[maybe_unused]] const KernelRequest& request,
                              [[maybe_unused]] const CollectiveAttributes& a,
                              [[maybe_unused]] const std::shared_ptr<cuda::RankLink>& link) {
#ifdef EBB_HAS_CUDA
  return bind_collective_cuda(request, a, link);
#else
  request.no_kernel(request.out().dtype());
#endif
}

void require_ranks(const Op& op, const CollectiveAttributes& a, int present) {
  if (a.ranks == 1) return;
  if (present == 0)
    throw ValueError(fmt::format("[{}] is for {} ranks, but the program has no communicator",
                                 op.name(), a.ranks));
  if (present != a.ranks)
    throw ValueError(
        fmt::format("[{}] is for {} ranks, but there are {}", op.name(), a.ranks, present));
}

void require_few_blocks(const Op& op, std::int64_t blocks, std::int64_t most) {
  if (blocks > most)
    throw ValueError(fmt::format(
        "[{}] a rank on a GPU has at most {} blocks of leaves, but these are {}; best is a number "
        "of leaves that is a power of two times the number of ranks",
        op.name(), most, blocks));
}

LinkUse link_use(const Op& op, std::span<const TensorType> inputs,
                 std::span<const TensorType> outputs, const CollectiveAttributes& a,
                 Device::Kind kind) {
  if (a.ranks == 1 || &op == &own_range_op()) return {};
  const bool gathers = &op == &all_gather_op();
  const TensorType& whole = gathers ? outputs[0] : inputs[0];
  const std::int64_t range =
      gathers ? inputs[0].shape[0] : range_elements(whole.shape.elements(), a.ranks);
  const Bytes others = (a.ranks - 1) * (range * size_of(whole.dtype));
  const std::int64_t slots = static_cast<std::int64_t>(inputs.size());
  LinkUse use;
  if (!gathers && a.reduce == Reduce::fast) {  // over this rank's blocks
    use.sent += others, ++use.exchanges;
  } else if (!gathers) {
    // With one block per rank, only the ranks whose blocks count send theirs: this many on average.
    const bool some = slots == 1 && a.blocks < a.ranks;
    use.sent += some ? Bytes{others.count * a.blocks / a.ranks} : slots * others;
    // GPUs send all blocks of a piece at once, CPUs one after another.
    const std::int64_t pieces = pieces_of(range, a.ranks, slots, whole.dtype, kind).count;
    use.exchanges += (kind == Device::Kind::cuda ? 1 : slots) * pieces;
  }
  if (gathers || &op == &all_reduce_op()) use.sent += others, ++use.exchanges;
  return use;
}

}  // namespace ebb
