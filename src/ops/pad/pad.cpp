#include "ops/pad/pad.h"

#include <fmt/core.h>

#include <cmath>

#include "core/parallel.h"
#include "ebb/ops.h"
#include "ops/cuda_kernels.h"
#include "ops/dispatch.h"
#include "ops/view/view.h"

namespace ebb {
namespace {

std::vector<TensorType> infer(const Call& call, const PadAttributes& a) {
  Shape shape = call.shape(0);
  if (is_integer(call.dtype(0)) && !holds(call.dtype(0), a.value))
    call.fail_value(fmt::format("{} cannot hold the value {}", name(call.dtype(0)), a.value));
  if (a.before.size() != shape.rank() || a.after.size() != shape.rank())
    call.fail_value(
        fmt::format("needs one number before and after each of {} axes, but {} and {} came",
                    shape.rank(), to_string(a.before), to_string(a.after)));
  for (int i = 0; i < shape.rank(); ++i) {
    if (a.before[i] < 0 || a.after[i] < 0)
      call.fail_value(fmt::format("padding must not be negative, but is {} and {}",
                                  to_string(a.before), to_string(a.after)));
    shape[i] = a.before[i] + (shape[i] > 0 ? (shape[i] - 1) * a.step[i] + 1 : 0) + a.after[i];
  }
  return {{shape, call.dtype(0)}};
}

std::vector<Tensor> gradient(const GradientCall& call, const PadAttributes& a) {
  Tensor result = call.grad();
  const Shape& inner = call.input_type(0).shape;
  for (int i = 0; i < inner.rank(); ++i) {
    const std::int64_t end = a.before[i] + (inner[i] > 0 ? (inner[i] - 1) * a.step[i] + 1 : 0);
    if (inner[i] != result.shape()[i]) result = slice(result, i, a.before[i], end, a.step[i]);
  }
  return {result};
}

// Fills, then copies the rows of the input to their places.
template <class T>
void run(const KernelArgs& args, const Shape& in, const Shape& out, const PadAttributes& a,
         T fill) {
  T* to = args.out<T>();
  const T* from = args.in<T>(0);
  parallel_for(out.elements(), 1 << 15, [&](std::int64_t begin, std::int64_t end) {
    std::fill(to + begin, to + end, fill);
  });
  if (in.elements() == 0) return;
  const int last = in.rank() - 1;
  const std::int64_t columns = last >= 0 ? in[last] : 1, rows = in.elements() / columns;
  const Strides strides = contiguous_strides(out);
  parallel_for(rows, std::max<std::int64_t>(1, 16384 / columns),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) {
                   std::int64_t rest = row, offset = last >= 0 ? a.before[last] : 0;
                   for (int i = last - 1; i >= 0; --i) {
                     offset += (a.before[i] + rest % in[i] * a.step[i]) * strides[i];
                     rest /= in[i];
                   }
                   const std::int64_t step = last >= 0 ? a.step[last] : 1;
                   for (std::int64_t k = 0; k < columns; ++k)
                     to[offset + k * step] = from[row * columns + k];
                 }
               });
}

Kernel bind_cpu(const KernelRequest& request, const PadAttributes& a) {
  return dispatch_size(request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T fill = fill_value<T>(request.out().dtype(), a.value);
    return Kernel{[in = request.in(0).shape(), out = request.out().shape(), a,
                   fill](const KernelArgs& args) { run<T>(args, in, out, a, fill); }};
  });
}

}  // namespace

const Op& pad_op() {
  static const TypedOp<PadAttributes> op({
      .name = "pad",
      .summary = "a constant around (and with steps between) the elements",
      .infer = infer,
      .gradient = gradient,
      .cpu = bind_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_pad_cuda),
  });
  return op;
}

Tensor pad_with_steps(const Tensor& x, const IntList& before, const IntList& after,
                      const IntList& step, double value) {
  return apply1(pad_op(), {x}, PadAttributes{before, after, step, value});
}

Tensor pad(const Tensor& x, const IntList& before, const IntList& after, double value) {
  return pad_with_steps(x, before, after, IntList::filled(x.rank(), 1), value);
}

}  // namespace ebb
