#include <fmt/format.h>

#include <cmath>

#include "core/parallel.h"
#include "ebb/ops.h"
#include "ops/dispatch.h"
#include "ops/pointwise/convert.h"
#include "ops/view/view.h"

namespace ebb {
namespace {

struct PadAttributes {
  IntList before, after, step;
  double value = 0.0;
  bool operator==(const PadAttributes&) const = default;
  void visit(auto&& field) const {
    field("before", before);
    field("after", after);
    field("step", step);
    field("value", value);
  }
};

std::vector<TensorType> infer(const Call& call, const PadAttributes& a) {
  Shape shape = call.shape(0);
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

template <class T>
T fill_value(DType dtype, double value) {
  if (dtype == bf16) return std::bit_cast<T>(BFloat16(static_cast<float>(value)).bits);
  return std::bit_cast<T>(Half(static_cast<float>(value)).bits);
}
template <>
std::uint64_t fill_value(DType dtype, double value) {
  return dtype == f64 ? std::bit_cast<std::uint64_t>(value)
                      : std::bit_cast<std::uint64_t>(convert<std::int64_t>(value));
}
template <>
std::uint32_t fill_value(DType dtype, double value) {
  return dtype == f32 ? std::bit_cast<std::uint32_t>(static_cast<float>(value))
                      : std::bit_cast<std::uint32_t>(convert<std::int32_t>(value));
}
template <>
std::uint8_t fill_value(DType dtype, double value) {
  return dtype == b8 ? value != 0.0 : convert<std::uint8_t>(value);
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
