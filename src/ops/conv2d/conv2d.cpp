#include "ops/conv2d/conv2d.h"

#include <fmt/core.h>

#include "ops/cuda_kernels.h"
#include "ops/image_axes.h"

namespace ebb {
namespace {

void check_options(const Call& call, const Conv2dAttributes& a) {
  const auto pair = [](Size2d s) { return fmt::format("({}, {})", s.h, s.w); };
  if (a.stride.h < 1 || a.stride.w < 1)
    call.fail_value("the stride must be at least 1, but is " + pair(a.stride));
  if (a.dilation.h < 1 || a.dilation.w < 1)
    call.fail_value("the dilation must be at least 1, but is " + pair(a.dilation));
  if (a.padding.h < 0 || a.padding.w < 0)
    call.fail_value("the padding must not be negative, but is " + pair(a.padding));
  if (a.groups < 1) call.fail_value(fmt::format("groups must be at least 1, but is {}", a.groups));
}

// The number of positions of the kernel along one axis of the image; less than 1 if it does not
// fit.
std::int64_t positions(std::int64_t image, std::int64_t kernel, std::int64_t stride,
                       std::int64_t padding, std::int64_t dilation) {
  const std::int64_t room = image + 2 * padding - dilation * (kernel - 1) - 1;
  return room < 0 ? 0 : room / stride + 1;
}

// The shape of the result for an image and a kernel. Checks both; all shapes have the channels
// first.
Shape result_shape(const Call& call, const Shape& x, const Shape& weight,
                   const Conv2dAttributes& a) {
  for (int i = 1; i < 4; ++i)
    if (x[i] < 1)
      call.fail_shape(fmt::format("only the batch may be empty, but the image is {}",
                                  to_string(from_channels_first(x, a.layout))));
  for (int i = 0; i < 4; ++i)
    if (weight[i] < 1)
      call.fail_shape(
          fmt::format("the weight must not be empty, but its shape is {}", to_string(weight)));
  if (x[1] != weight[1] * a.groups)
    call.fail_shape(fmt::format(
        "a weight with {} channels in {} groups takes images of {} channels, but they have {}",
        weight[1], a.groups, weight[1] * a.groups, x[1]));
  if (weight[0] % a.groups != 0)
    call.fail_shape(
        fmt::format("{} output channels do not divide into {} groups", weight[0], a.groups));
  const std::int64_t h = positions(x[2], weight[2], a.stride.h, a.padding.h, a.dilation.h);
  const std::int64_t w = positions(x[3], weight[3], a.stride.w, a.padding.w, a.dilation.w);
  if (h < 1 || w < 1)
    call.fail_shape(fmt::format("the kernel covers {} x {} cells, but the padded image has {} x {}",
                                a.dilation.h * (weight[2] - 1) + 1,
                                a.dilation.w * (weight[3] - 1) + 1, x[2] + 2 * a.padding.h,
                                x[3] + 2 * a.padding.w));
  return {x[0], weight[0], h, w};
}

void check_inputs(const Call& call, const Conv2dAttributes& a) {
  check_options(call, a);
  call.require_floating(0);
  call.require_same_dtype(0, 1);
  call.require_rank(0, 4);
  call.require_rank(1, 4);
}

void check_gradient(const Call& call, const Shape& result, const Conv2dAttributes& a) {
  const Shape expected = from_channels_first(result, a.layout);
  if (call.shape(1) != expected)
    call.fail_shape(fmt::format("the gradient must have shape {}, but has {}", to_string(expected),
                                to_string(call.shape(1))));
}

std::vector<TensorType> infer_forward(const Call& call, const Conv2dAttributes& a) {
  check_inputs(call, a);
  const Shape shape = result_shape(call, as_channels_first(call.shape(0), a.layout),
                                   as_channels_first(call.shape(1), a.layout), a);
  if (call.count() == 3) {
    call.require_same_dtype(0, 2);
    if (call.shape(2) != Shape{shape[1]})
      call.fail_shape(fmt::format("the bias must have shape ({},)", shape[1]));
  }
  return {{from_channels_first(shape, a.layout), call.dtype(0)}};
}

std::vector<TensorType> infer_input_grad(const Call& call, const Conv2dAttributes& a) {
  check_inputs(call, a);
  const Shape weight = as_channels_first(call.shape(0), a.layout);
  const Shape x{call.shape(1)[0], weight[1] * a.groups, a.size.h, a.size.w};
  check_gradient(call, result_shape(call, x, weight, a), a);
  return {{from_channels_first(x, a.layout), call.dtype(0)}};
}

std::vector<TensorType> infer_weight_grad(const Call& call, const Conv2dAttributes& a) {
  check_inputs(call, a);
  const Shape x = as_channels_first(call.shape(0), a.layout),
              g = as_channels_first(call.shape(1), a.layout);
  const Shape weight{g[1], x[1] / a.groups, a.size.h, a.size.w};
  check_gradient(call, result_shape(call, x, weight, a), a);
  return {{from_channels_first(weight, a.layout), call.dtype(0)}};
}

Tensor forward(const Tensor& x, const Tensor& weight, Conv2dAttributes a) {
  a.size = 0;
  return apply1(conv2d_op(), {x, weight}, a);
}
// Height and width of an image or a kernel.
Size2d plane(const Shape& shape, ImageLayout layout) {
  const Shape first = as_channels_first(shape, layout);
  return {first[2], first[3]};
}
Tensor input_grad(const Tensor& weight, const Tensor& g, const Shape& x, Conv2dAttributes a) {
  a.size = plane(x, a.layout);
  return apply1(conv2d_input_grad_op(), {weight, g}, a);
}
Tensor weight_grad(const Tensor& x, const Tensor& g, const Shape& weight, Conv2dAttributes a) {
  a.size = plane(weight, a.layout);
  return apply1(conv2d_weight_grad_op(), {x, g}, a);
}

std::vector<Tensor> forward_gradient(const GradientCall& call, const Conv2dAttributes& a) {
  const Tensor g = call.grad();
  std::vector<Tensor> result(static_cast<std::size_t>(call.input_count()));
  if (call.needs(0)) result[0] = input_grad(call.input(1), g, call.input_type(0).shape, a);
  if (call.needs(1)) result[1] = weight_grad(call.input(0), g, call.input_type(1).shape, a);
  if (call.input_count() == 3 && call.needs(2))
    result[2] = sum(as_channels_first(g, a.layout), {0, 2, 3});
  return result;
}

std::vector<Tensor> input_grad_gradient(const GradientCall& call, const Conv2dAttributes& a) {
  const Tensor x = call.grad();
  return {call.needs(0) ? weight_grad(x, call.input(1), call.input_type(0).shape, a) : Tensor{},
          call.needs(1) ? forward(x, call.input(0), a) : Tensor{}};
}

std::vector<Tensor> weight_grad_gradient(const GradientCall& call, const Conv2dAttributes& a) {
  const Tensor weight = call.grad();
  return {call.needs(0) ? input_grad(weight, call.input(1), call.input_type(0).shape, a) : Tensor{},
          call.needs(1) ? forward(call.input(0), weight, a) : Tensor{}};
}

// A sum over the taps of the kernel: each is a product of matrices over the channels.
std::vector<Tensor> reference(std::span<const Tensor> inputs, const Conv2dAttributes& a) {
  const Tensor image = as_channels_first(inputs[0], a.layout),
               kernel = as_channels_first(inputs[1], a.layout);
  const Shape &x = image.shape(), &weight = kernel.shape();
  const std::int64_t h = positions(x[2], weight[2], a.stride.h, a.padding.h, a.dilation.h);
  const std::int64_t w = positions(x[3], weight[3], a.stride.w, a.padding.w, a.dilation.w);
  const IntList margin{0, 0, a.padding.h, a.padding.w};
  const Tensor padded = pad(image, margin, margin);
  Tensor total;
  for (std::int64_t i = 0; i < weight[2]; ++i)
    for (std::int64_t j = 0; j < weight[3]; ++j) {
      const std::int64_t top = i * a.dilation.h, left = j * a.dilation.w;
      const Tensor rows = slice(padded, 2, top, top + (h - 1) * a.stride.h + 1, a.stride.h);
      const Tensor cells = slice(rows, 3, left, left + (w - 1) * a.stride.w + 1, a.stride.w);
      const Tensor tap = slice(slice(kernel, 2, i, i + 1), 3, j, j + 1);
      const Tensor part =
          matmul(reshape(tap, {a.groups, weight[0] / a.groups, weight[1]}),
                 reshape(cells, {x[0], a.groups, weight[1], h * w}));  // (N, groups, O', h·w)
      total = total ? total + part : part;
    }
  Tensor y = reshape(total, {x[0], weight[0], h, w});
  if (inputs.size() == 3) y = y + reshape(inputs[2], {weight[0], 1, 1});
  return {from_channels_first(y, a.layout)};
}

// Two operations for each element of the result and each weight that reaches it.
Cost cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs, const Shape& y,
          const Shape& weight) {
  Cost result = default_cost(inputs, outputs);
  result.work = Work::convolution;
  result.flops = 2.0 * static_cast<double>(y.elements()) *
                 static_cast<double>(weight[1] * weight[2] * weight[3]);
  return result;
}

using Types = std::span<const TensorType>;

}  // namespace

ConvGeometry conv_geometry(const Shape& image, const Shape& kernel, const Shape& result,
                           const Conv2dAttributes& a) {
  const Shape x = as_channels_first(image, a.layout), weight = as_channels_first(kernel, a.layout),
              y = as_channels_first(result, a.layout);
  return {.batch = x[0],
          .groups = a.groups,
          .in = x[1],
          .out = y[1],
          .image = {x[2], x[3]},
          .kernel = {weight[2], weight[3]},
          .result = {y[2], y[3]},
          .stride = a.stride,
          .padding = a.padding,
          .dilation = a.dilation,
          .layout = a.layout};
}

const Op& conv2d_op() {
  static const TypedOp<Conv2dAttributes> op({
      .name = "conv2d",
      .summary = "two-dimensional convolution, plus a bias",
      .infer = infer_forward,
      .gradient = forward_gradient,
      .saved = {.inputs = {0, 1}, .outputs = {}},
      .reference = reference,
      .cpu = bind_conv2d_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_conv2d_cuda),
      .cost =
          [](Types inputs, Types outputs, const Conv2dAttributes&) {
            return cost(inputs, outputs, outputs[0].shape, inputs[1].shape);
          },
      .narrowing = Narrowing::sought,
  });
  return op;
}

const Op& conv2d_input_grad_op() {
  static const TypedOp<Conv2dAttributes> op({
      .name = "conv2d_input_grad",
      .summary = "the gradient of conv2d in the image",
      .infer = infer_input_grad,
      .gradient = input_grad_gradient,
      .saved = {.inputs = {0, 1}, .outputs = {}},
      .cpu = bind_conv2d_input_grad_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_conv2d_input_grad_cuda),
      .cost =
          [](Types inputs, Types outputs, const Conv2dAttributes&) {
            return cost(inputs, outputs, inputs[1].shape, inputs[0].shape);
          },
  });
  return op;
}

const Op& conv2d_weight_grad_op() {
  static const TypedOp<Conv2dAttributes> op({
      .name = "conv2d_weight_grad",
      .summary = "the gradient of conv2d in the weight",
      .infer = infer_weight_grad,
      .gradient = weight_grad_gradient,
      .saved = {.inputs = {0, 1}, .outputs = {}},
      .cpu = bind_conv2d_weight_grad_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_conv2d_weight_grad_cuda),
      .cost =
          [](Types inputs, Types outputs, const Conv2dAttributes&) {
            return cost(inputs, outputs, inputs[1].shape, outputs[0].shape);
          },
  });
  return op;
}

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Conv2dOptions& options) {
  const Conv2dAttributes attributes{.stride = options.stride,
                                    .padding = options.padding,
                                    .dilation = options.dilation,
                                    .groups = options.groups,
                                    .layout = options.layout};
  // A weight of another rank is passed on; `infer` reports it.
  const Tensor kernel = weight.rank() == 4 ? from_channels_first(weight, options.layout) : weight;
  return apply1(conv2d_op(), bias ? std::vector{x, kernel, bias} : std::vector{x, kernel},
                attributes);
}

}  // namespace ebb
