// One thread rotates one pair of all heads of a token; its angle is computed once, in double.
#include "ops/cuda/element.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/strided.cuh"
#include "ops/resident/steps.h"
#include "ops/rotary_at/rotary_at.h"

namespace ebb {
namespace {

using namespace cuda;

struct Problem {
  std::int64_t batches, heads, tokens, pairs;
  std::int64_t batch_stride, head_stride, token_stride;
  double base;

  Problem(const Arg& x, const RotaryAtAttributes& a)
      : batches(x.shape()[0]),
        heads(x.shape()[1]),
        tokens(x.shape()[2]),
        pairs(x.shape()[3] / 2),
        batch_stride(x.strides[0]),
        head_stride(x.strides[1]),
        token_stride(x.strides[2]),
        base(a.base) {}
};

template <class T>
__global__ void turn(Problem p, const T* x, const std::int32_t* positions, T* out) {
  using C = Compute<T>;
  for_items(p.batches * p.tokens * p.pairs, [&](std::int64_t item) {
    const std::int64_t token = quotient(item, p.pairs), i = item - token * p.pairs;
    const std::int64_t b = quotient(token, p.tokens), t = token - b * p.tokens;
    const double speed =
        ::exp(static_cast<double>(i) * (-::log(p.base) / static_cast<double>(p.pairs)));
    const std::int32_t place = positions[token];
    double sine, cosine;
    ::sincos(static_cast<double>(place > 0 ? place : 0) * speed, &sine, &cosine);
    const C c = static_cast<C>(cosine), s = static_cast<C>(sine);
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const T* from = x + b * p.batch_stride + h * p.head_stride + t * p.token_stride + i;
      T* to = out + ((b * p.heads + h) * p.tokens + t) * 2 * p.pairs + i;
      const C first = widen(from[0]), second = widen(from[p.pairs]);
      to[0] = narrow<T>(first * c - second * s);
      to[p.pairs] = narrow<T>(second * c + first * s);
    }
  });
}

}  // namespace

Kernel bind_rotary_at_cuda(const KernelRequest& request, const RotaryAtAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Problem p(request.in(0), a);
    const auto run = [p](const KernelArgs& args) {
      launch({args, "rotary_at", item_grid(p.batches * p.tokens * p.pairs), dim3(item_threads)},
             turn<T>, p, args.in<T>(0), args.in<std::int32_t>(1), args.out<T>());
    };
    if (sizeof(T) != 2 || p.tokens != 1 || p.batches > resident::most_rows) return Kernel{run};
    resident::Step step = resident::step(request, run);
    step.task = [p](const KernelArgs& args) -> std::optional<resident::Task> {
      return resident::Rotary{.x = args.in<T>(0),
                              .positions = args.in<std::int32_t>(1),
                              .out = args.out<T>(),
                              .base = p.base,
                              .batch_stride = p.batch_stride,
                              .head_stride = p.head_stride,
                              .batches = static_cast<std::int32_t>(p.batches),
                              .heads = static_cast<std::int32_t>(p.heads),
                              .pairs = static_cast<std::int32_t>(p.pairs)};
    };
    return Kernel{step};
  });
}

}  // namespace ebb
