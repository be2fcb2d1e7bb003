#include "ops/sample_token/sample_token.h"

#include <fmt/core.h>

#include "ebb/decode.h"
#include "ops/cuda_kernels.h"

namespace ebb {
namespace {

std::vector<TensorType> infer(const Call& call, const SampleTokenAttributes& a) {
  call.require_floating(SampleToken::logits);
  call.require_rank(SampleToken::logits, 2);
  const Shape& logits = call.shape(SampleToken::logits);
  if (logits[1] < 1 || logits[1] > 0x7fffffff)
    call.fail_shape(fmt::format("a row needs 1 to {} logits, but has {}", 0x7fffffff, logits[1]));
  const TensorType keys{{logits[0]}, i64}, positions{{logits[0]}, i32};
  if (call.inputs[SampleToken::keys] != keys)
    call.fail_shape(fmt::format("keys must be {}, but are {}", to_string(keys),
                                to_string(call.inputs[SampleToken::keys])));
  if (call.inputs[SampleToken::positions] != positions)
    call.fail_shape(fmt::format("positions must be {}, but are {}", to_string(positions),
                                to_string(call.inputs[SampleToken::positions])));
  if (!(a.temperature >= 0.0 && std::isfinite(a.temperature)))
    call.fail_value(fmt::format("the temperature must be 0 or more, but is {}", a.temperature));
  if (a.top_k < 0) call.fail_value(fmt::format("top_k must be 0 or more, but is {}", a.top_k));
  if (!(a.top_p > 0.0 && a.top_p <= 1.0))
    call.fail_value(fmt::format("top_p must be above 0 and at most 1, but is {}", a.top_p));
  return {{{logits[0]}, i32}};
}

}  // namespace

const Op& sample_token_op() {
  static const TypedOp<SampleTokenAttributes> op({
      .name = "sample_token",
      .summary = "draws a token for each row of logits",
      .infer = infer,
      .gradient = zero_gradient<SampleTokenAttributes>,
      .cpu = bind_sample_token_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_sample_token_cuda),
      .operations = 8.0,
  });
  return op;
}

Tensor sample_token(const Tensor& logits, const Tensor& keys, const Tensor& positions,
                    const SampleOptions& options) {
  return apply1(sample_token_op(), {logits, keys, positions},
                SampleTokenAttributes{options.temperature, options.top_k, options.top_p});
}

}  // namespace ebb
