#include "ops/conv2d/cudnn_cuda.h"
#include "ops/cuda/element.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/strided.cuh"

namespace ebb {
namespace {

using namespace cuda;

template <class S>
__global__ void add_bias(const S* bias, S* y, std::int64_t count, std::int64_t plane,
                         std::int64_t channels) {
  for_items(count, [&](std::int64_t i) {
    const std::int64_t row = quotient(i, plane);
    const S b = bias[row - quotient(row, channels) * channels];
    y[i] = narrow<S>(static_cast<Compute<S>>(widen(y[i]) + widen(b)));
  });
}

Kernel bind(const KernelRequest& request, ConvKind kind, const ConvGeometry& g) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    if (g.batch == 0)  // sums over no images; images that are not there need no kernel
      return Kernel{[bytes = request.out().type.bytes()](const KernelArgs& args) {
        if (bytes.count > 0)
          EBB_CUDA_CHECK(cudaMemsetAsync(args.outputs[0], 0, static_cast<std::size_t>(bytes.count),
                                         stream_of(args)));
      }};
    const Convolution convolution(request.device, kind, g, request.out().dtype(), request.tf32);
    const std::int64_t count = request.inputs.size() == 3 ? request.out().shape().elements() : 0;
    return Kernel{[convolution, count, plane = g.result.h * g.result.w,
                   channels = g.out](const KernelArgs& args) {
                    convolution.run(args, args.inputs[0], args.inputs[1], args.outputs[0]);
                    if (count > 0)
                      launch({args, "conv2d", item_grid(count), dim3(item_threads)}, add_bias<S>,
                             args.in<S>(2), args.out<S>(), count, plane, channels);
                  },
                  convolution.workspace()};
  });
}

}  // namespace

Kernel bind_conv2d_cuda(const KernelRequest& request, const Conv2dAttributes& a) {
  return bind(
      request, ConvKind::forward,
      conv_geometry(request.in(0).shape(), request.in(1).shape(), request.out().shape(), a));
}

Kernel bind_conv2d_input_grad_cuda(const KernelRequest& request, const Conv2dAttributes& a) {
  return bind(
      request, ConvKind::input_grad,
      conv_geometry(request.out().shape(), request.in(0).shape(), request.in(1).shape(), a));
}

Kernel bind_conv2d_weight_grad_cuda(const KernelRequest& request, const Conv2dAttributes& a) {
  return bind(
      request, ConvKind::weight_grad,
      conv_geometry(request.in(0).shape(), request.out().shape(), request.in(1).shape(), a));
}

}  // namespace ebb
