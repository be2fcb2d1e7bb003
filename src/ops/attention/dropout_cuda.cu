// The dropout mask as a tensor, one thread per group of 32 scores. Attention kernels draw it inline
// instead.
#include "ops/attention/attention.h"
#include "ops/attention/problem.cuh"

namespace ebb {
namespace {

using namespace attention;

template <class S>
__global__ void draw(DropoutMask mask, const cuda::Control* control, RandomKey key,
                     std::int64_t groups, std::int64_t queries, std::int64_t keys, S* out) {
  const Philox philox(control->random, key);
  const S keep = cuda::narrow<S>(static_cast<Compute<S>>(mask.keep)),
          none = cuda::narrow<S>(Compute<S>(0));
  cuda::for_items(groups, [&](std::int64_t group) {
    const std::uint32_t kept = draw_group(mask, philox, static_cast<std::uint64_t>(group));
    const std::int64_t block = group / DropoutMask::block_groups,
                       row = block / mask.key_blocks,  // of blocks
        head = row / mask.query_blocks;
    const std::int64_t i0 = (row - head * mask.query_blocks) * DropoutMask::edge +
                            group % DropoutMask::block_groups,
                       j0 = (block - row * mask.key_blocks) * DropoutMask::edge;
    for (int n = 0; n < 32; ++n) {
      const std::int64_t i = i0 + n / DropoutMask::edge * DropoutMask::block_groups,
                         j = j0 + n % DropoutMask::edge;
      if (i < queries && j < keys)
        out[(head * queries + i) * keys + j] = (kept >> n & 1u) != 0 ? keep : none;
    }
  });
}

}  // namespace

Kernel bind_attention_dropout_cuda(const KernelRequest& request,
                                   const AttentionDropoutAttributes& a) {
  return dispatch_floating(request, a.dtype, [&](auto tag) {
    using S = typename decltype(tag)::type;
    const std::int64_t heads = a.scores[0] * a.scores[1], queries = a.scores[2], keys = a.scores[3];
    const DropoutMask mask(a.probability, queries, keys);
    const std::int64_t groups =
        heads * mask.query_blocks * mask.key_blocks * DropoutMask::block_groups;
    return Kernel{[=, key = a.key](const KernelArgs& args) {
      launch({args, "attention_dropout", cuda::item_grid(groups), dim3(cuda::item_threads)},
             draw<S>, mask, args.control, key, groups, queries, keys, args.out<S>());
    }};
  });
}

}  // namespace ebb
