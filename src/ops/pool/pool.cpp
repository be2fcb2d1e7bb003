#include "ops/pool/pool.h"

#include <fmt/core.h>

#include "ops/cuda_kernels.h"
#include "ops/image_axes.h"

namespace ebb {
namespace {

constexpr std::int64_t largest_window = 256;  // cells that one byte can index

void check_window(const Call& call, const PoolAttributes& a) {
  const auto pair = [](Size2d s) { return fmt::format("({}, {})", s.h, s.w); };
  if (a.kernel.h < 1 || a.kernel.w < 1)
    call.fail_value("the kernel must be at least 1, but is " + pair(a.kernel));
  if (a.stride.h < 1 || a.stride.w < 1)
    call.fail_value("the stride must be at least 1, but is " + pair(a.stride));
  if (a.padding.h < 0 || a.padding.w < 0 || 2 * a.padding.h > a.kernel.h ||
      2 * a.padding.w > a.kernel.w)
    call.fail_value(fmt::format("the padding must be from 0 to half of the kernel {}, but is {}",
                                pair(a.kernel), pair(a.padding)));
}

void check_max_window(const Call& call, const PoolAttributes& a) {
  check_window(call, a);
  if (a.kernel.h > largest_window || a.kernel.w > largest_window ||
      a.kernel.h * a.kernel.w > largest_window)
    call.fail_value(fmt::format("a window may have up to {} cells, but {} x {} has {}",
                                largest_window, a.kernel.h, a.kernel.w, a.kernel.h * a.kernel.w));
}

// The shape of the result for an image, both in the layout of the attributes.
Shape pooled(const Call& call, const Shape& image, const PoolAttributes& a) {
  const Shape x = as_channels_first(image, a.layout);
  const std::int64_t h = x[2] + 2 * a.padding.h - a.kernel.h,
                     w = x[3] + 2 * a.padding.w - a.kernel.w;
  if (x[2] < 1 || x[3] < 1 || h < 0 || w < 0)
    call.fail_shape(fmt::format("the window of {} x {} does not fit the padded image of {} x {}",
                                a.kernel.h, a.kernel.w, x[2] + 2 * a.padding.h,
                                x[3] + 2 * a.padding.w));
  return from_channels_first({x[0], x[1], h / a.stride.h + 1, w / a.stride.w + 1}, a.layout);
}

std::vector<TensorType> infer_max(const Call& call, const PoolAttributes& a) {
  check_max_window(call, a);
  call.require_floating(0);
  call.require_rank(0, 4);
  const Shape shape = pooled(call, call.shape(0), a);
  return {{shape, call.dtype(0)}, {shape, u8}};
}

void check_offsets(const Call& call) {
  call.require_rank(0, 4);
  call.require_rank(1, 4);
  call.require_floating(1);
  if (call.dtype(0) != u8)
    call.fail_dtype(fmt::format("the offsets must be uint8, but are {}", name(call.dtype(0))));
}

// The shape of the image whose results have the shape `y`.
Shape image(const Call& call, const Shape& y, const PoolAttributes& a) {
  const std::int64_t channels = as_channels_first(y, a.layout)[1];
  const Shape x = from_channels_first({y[0], channels, a.size.h, a.size.w}, a.layout);
  if (const Shape expected = pooled(call, x, a); y != expected)
    call.fail_shape(fmt::format("images of {} x {} give results of shape {}, but {} came", a.size.h,
                                a.size.w, to_string(expected), to_string(y)));
  return x;
}

std::vector<TensorType> infer_max_grad(const Call& call, const PoolAttributes& a) {
  check_max_window(call, a);
  check_offsets(call);
  if (call.shape(0) != call.shape(1))
    call.fail_shape("offsets and gradient must have the same shape");
  return {{image(call, call.shape(1), a), call.dtype(1)}};
}

std::vector<TensorType> infer_max_gather(const Call& call, const PoolAttributes& a) {
  check_max_window(call, a);
  check_offsets(call);
  if (const Shape shape = pooled(call, call.shape(1), a); call.shape(0) != shape)
    call.fail_shape(fmt::format("the offsets must have shape {}", to_string(shape)));
  return {{call.shape(0), call.dtype(1)}};
}

std::vector<TensorType> infer_avg(const Call& call, const PoolAttributes& a) {
  check_window(call, a);
  call.require_floating(0);
  call.require_rank(0, 4);
  return {{pooled(call, call.shape(0), a), call.dtype(0)}};
}

std::vector<TensorType> infer_avg_grad(const Call& call, const PoolAttributes& a) {
  check_window(call, a);
  call.require_floating(0);
  call.require_rank(0, 4);
  return {{image(call, call.shape(0), a), call.dtype(0)}};
}

PoolAttributes with_size(PoolAttributes a, const Shape& image) {
  const Shape x = as_channels_first(image, a.layout);
  a.size = {x[2], x[3]};
  return a;
}
PoolAttributes without_size(PoolAttributes a) {
  a.size = 0;
  return a;
}

std::vector<Tensor> max_gradient(const GradientCall& call, const PoolAttributes& a) {
  return {apply1(max_pool2d_grad_op(), {call.output(1), call.grad()},
                 with_size(a, call.input_type(0).shape))};
}
std::vector<Tensor> max_grad_gradient(const GradientCall& call, const PoolAttributes& a) {
  return {Tensor{}, apply1(max_pool2d_gather_op(), {call.input(0), call.grad()}, without_size(a))};
}
std::vector<Tensor> max_gather_gradient(const GradientCall& call, const PoolAttributes& a) {
  return {Tensor{}, apply1(max_pool2d_grad_op(), {call.input(0), call.grad()},
                           with_size(a, call.input_type(1).shape))};
}
std::vector<Tensor> avg_gradient(const GradientCall& call, const PoolAttributes& a) {
  return {apply1(avg_pool2d_grad_op(), {call.grad()}, with_size(a, call.input_type(0).shape))};
}
std::vector<Tensor> avg_grad_gradient(const GradientCall& call, const PoolAttributes& a) {
  return {apply1(avg_pool2d_op(), {call.grad()}, without_size(a))};
}

PoolAttributes attributes(Size2d kernel, Size2d stride, Size2d padding, ImageLayout layout) {
  return {.kernel = kernel,
          .stride = stride == Size2d(0) ? kernel : stride,
          .padding = padding,
          .layout = layout};
}

}  // namespace

const Op& max_pool2d_op() {
  static const TypedOp<PoolAttributes> op({
      .name = "max_pool2d",
      .summary = "the largest of each window and where it was; the first of equals, NaN wins",
      .infer = infer_max,
      .gradient = max_gradient,
      .saved = {.inputs = {}, .outputs = {1}},
      .cpu = bind_max_pool2d,
      .cuda = EBB_CUDA_KERNEL(bind_max_pool2d_cuda),
      .operations = 100.0,
  });
  return op;
}

const Op& max_pool2d_grad_op() {
  static const TypedOp<PoolAttributes> op({
      .name = "max_pool2d_grad",
      .summary = "adds gradients to the cells that were the largest of their windows",
      .infer = infer_max_grad,
      .gradient = max_grad_gradient,
      .saved = {.inputs = {0}, .outputs = {}},
      .cpu = bind_max_pool2d_grad,
      .cuda = EBB_CUDA_KERNEL(bind_max_pool2d_grad_cuda),
      .operations = 80.0,
  });
  return op;
}

const Op& max_pool2d_gather_op() {
  static const TypedOp<PoolAttributes> op({
      .name = "max_pool2d_gather",
      .summary = "takes one cell of each window",
      .infer = infer_max_gather,
      .gradient = max_gather_gradient,
      .saved = {.inputs = {0}, .outputs = {}},
      .cpu = bind_max_pool2d_gather,
      .cuda = EBB_CUDA_KERNEL(bind_max_pool2d_gather_cuda),
  });
  return op;
}

const Op& avg_pool2d_op() {
  static const TypedOp<PoolAttributes> op({
      .name = "avg_pool2d",
      .summary = "the mean of each window",
      .infer = infer_avg,
      .gradient = avg_gradient,
      .cpu = bind_avg_pool2d,
      .cuda = EBB_CUDA_KERNEL(bind_avg_pool2d_cuda),
      .operations = 30.0,
  });
  return op;
}

const Op& avg_pool2d_grad_op() {
  static const TypedOp<PoolAttributes> op({
      .name = "avg_pool2d_grad",
      .summary = "spreads the gradient of each mean over its window",
      .infer = infer_avg_grad,
      .gradient = avg_grad_gradient,
      .cpu = bind_avg_pool2d_grad,
      .cuda = EBB_CUDA_KERNEL(bind_avg_pool2d_grad_cuda),
      .operations = 20.0,
  });
  return op;
}

Tensor max_pool2d(const Tensor& x, Size2d kernel, Size2d stride, Size2d padding,
                  ImageLayout layout) {
  return apply(max_pool2d_op(), {x}, attributes(kernel, stride, padding, layout)).front();
}

Tensor avg_pool2d(const Tensor& x, Size2d kernel, Size2d stride, Size2d padding, CountPad count_pad,
                  ImageLayout layout) {
  PoolAttributes a = attributes(kernel, stride, padding, layout);
  a.count_pad = count_pad == CountPad::yes;
  return apply1(avg_pool2d_op(), {x}, a);
}

Tensor global_avg_pool2d(const Tensor& x, ImageLayout layout) {
  return layout == ImageLayout::channels_last ? mean(x, {-3, -2}) : mean(x, {-2, -1});
}

}  // namespace ebb
