#include "ops/attention/dropout.h"

#include <fmt/core.h>

#include "core/parallel.h"
#include "ops/attention/attention.h"
#include "ops/attention/dropout_cpu.h"
#include "ops/cuda_kernels.h"
#include "ops/dispatch.h"

namespace ebb {
namespace {

std::vector<TensorType> infer(const Call& call, const AttentionDropoutAttributes& a) {
  if (a.scores.rank() != 4)
    call.fail_shape(
        fmt::format("scores have the shape (B, H, T, S), but {} came", to_string(a.scores)));
  return {{a.scores, a.dtype}};
}

Kernel bind_cpu(const KernelRequest& request, const AttentionDropoutAttributes& a) {
  return dispatch_floating(request, a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t heads = a.scores[0] * a.scores[1], queries = a.scores[2], keys = a.scores[3];
    const attention::DropoutMask mask(a.probability, queries, keys);
    return Kernel{[=, key = a.key](const KernelArgs& args) {
      const Philox philox(args.random, key);
      const T keep(static_cast<Compute<T>>(mask.keep)), none(Compute<T>(0));
      parallel_for(heads, 1, [&](std::int64_t begin, std::int64_t end) {
        constexpr std::int64_t edge = attention::DropoutMask::edge;
        for (std::int64_t head = begin; head < end; ++head)
          for (std::int64_t i = 0; i < queries; i += edge)
            for (std::int64_t j = 0; j < keys; j += edge) {
              const attention::KeptBlock block = attention::draw_block(mask, philox, head, i, j);
              for (std::int64_t y = 0; y < std::min(edge, queries - i); ++y)
                for (std::int64_t x = 0; x < std::min(edge, keys - j); ++x) {
                  const auto bit = attention::DropoutMask::bit(static_cast<std::uint32_t>(y),
                                                               static_cast<std::uint32_t>(x));
                  const std::uint32_t group = block[static_cast<std::size_t>(y) % block.size()];
                  args.out<T>()[(head * queries + i + y) * keys + j + x] =
                      (group >> bit & 1u) != 0 ? keep : none;
                }
            }
      });
    }};
  });
}

}  // namespace

const Op& attention_dropout_op() {
  static const TypedOp<AttentionDropoutAttributes> op({
      .name = "attention_dropout",
      .summary = "0 with probability p, else 1 / (1 - p), for the scores of attention",
      .infer = infer,
      .gradient = zero_gradient,
      .cpu = bind_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_attention_dropout_cuda),
      .operations = 14.0,
  });
  return op;
}

Tensor attention_dropout(const Shape& scores, double probability, DType dtype, Device device,
                         RandomKey key) {
  return create(attention_dropout_op(), device,
                AttentionDropoutAttributes{scores, dtype, probability, key});
}

}  // namespace ebb
