#include "ebb/error.h"
#include "ebb/storage.h"
#include "ops/conv2d/cudnn_cuda.h"
#include "ops/cuda/element.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/strided.cuh"

namespace ebb {
namespace {

using namespace cuda;

// y (..., channels, plane), whose last axis has size 1 when the channels are the last.
template <class S>
__global__ void add_bias(const S* bias, S* y, std::int64_t count, std::int64_t plane,
                         std::int64_t channels) {
  for_items(count, [&](std::int64_t i) {
    const std::int64_t row = quotient(i, plane);
    const S b = bias[row - quotient(row, channels) * channels];
    y[i] = narrow<S>(static_cast<Compute<S>>(widen(y[i]) + widen(b)));
  });
}

constexpr int tile = 32;

// to (batch, columns, rows) = from (batch, rows, columns), in tiles, so that both sides are
// accessed contiguously.
template <class S>
__global__ void turn_kernel(const S* from, S* to, std::int64_t rows, std::int64_t columns) {
  __shared__ S cells[tile][tile + 1];
  const std::int64_t down = ceil_div(rows, tile), across = ceil_div(columns, tile);
  const std::int64_t batch = quotient(blockIdx.x, down * across);
  const std::int64_t at = blockIdx.x - batch * down * across;
  const std::int64_t row = quotient(at, across) * tile,
                     column = (at - quotient(at, across) * across) * tile;
  const std::int64_t first = batch * rows * columns;
  for (int k = threadIdx.y; k < tile; k += blockDim.y)
    if (row + k < rows && column + threadIdx.x < columns)
      cells[k][threadIdx.x] = from[first + (row + k) * columns + column + threadIdx.x];
  __syncthreads();
  for (int k = threadIdx.y; k < tile; k += blockDim.y)
    if (column + k < columns && row + threadIdx.x < rows)
      to[first + (column + k) * rows + row + threadIdx.x] = cells[threadIdx.x][k];
}

// An operand of a convolution, (batch, positions, channels) with the channels last.
struct Operand {
  std::int64_t batch = 0, positions = 0, channels = 0;

  Bytes bytes(Bytes element) const {
    return round_up(batch * positions * channels * element, buffer_alignment);
  }
  template <class S>
  void to_channels_first(const KernelArgs& args, const void* from, void* to) const {
    turn<S>(args, from, to, positions, channels);
  }
  template <class S>
  void to_channels_last(const KernelArgs& args, const void* from, void* to) const {
    turn<S>(args, from, to, channels, positions);
  }

 private:
  template <class S>
  void turn(const KernelArgs& args, const void* from, void* to, std::int64_t rows,
            std::int64_t columns) const {
    const std::int64_t tiles = batch * ceil_div(rows, tile) * ceil_div(columns, tile);
    launch({args, "conv2d", dim3(static_cast<unsigned>(tiles)), dim3(tile, 8)}, turn_kernel<S>,
           static_cast<const S*>(from), static_cast<S*>(to), rows, columns);
  }
};

// Channels last, for cases that cuDNN supports only with channels first: transposes all three
// operands in the workspace.
template <class S>
class Turned {
 public:
  Turned(ConvKind kind, const ConvGeometry& g, const Convolution& convolution, Bytes element)
      : convolution_(convolution) {
    const Operand x{g.batch, g.image.h * g.image.w, g.in},
        y{g.batch, g.result.h * g.result.w, g.out},
        weight{g.out, g.kernel.h * g.kernel.w, g.in / g.groups};
    switch (kind) {
      case ConvKind::forward:
        first_ = x, second_ = weight, out_ = y;
        break;
      case ConvKind::input_grad:
        first_ = weight, second_ = y, out_ = x;
        break;
      case ConvKind::weight_grad:
        first_ = x, second_ = y, out_ = weight;
        break;
    }
    first_at_ = round_up(convolution.workspace(), buffer_alignment);
    second_at_ = first_at_ + first_.bytes(element);
    out_at_ = second_at_ + second_.bytes(element);
    workspace_ = out_at_ + out_.bytes(element);
  }

  Bytes workspace() const { return workspace_; }

  void run(const KernelArgs& args) const {
    S *first = args.scratch<S>(first_at_), *second = args.scratch<S>(second_at_),
      *out = args.scratch<S>(out_at_);
    first_.template to_channels_first<S>(args, args.inputs[0], first);
    second_.template to_channels_first<S>(args, args.inputs[1], second);
    convolution_.run(args, first, second, out);
    out_.template to_channels_last<S>(args, out, args.outputs[0]);
  }

 private:
  Convolution convolution_;
  Operand first_, second_, out_;
  Bytes first_at_, second_at_, out_at_, workspace_;
};

template <class S>
Kernel bind_without_bias(const KernelRequest& request, ConvKind kind, const ConvGeometry& g) {
  const DType dtype = request.out().dtype();
  if (const auto convolution = Convolution::find(request.target, kind, g, dtype))
    return {[convolution = *convolution](const KernelArgs& args) {
              convolution.run(args, args.inputs[0], args.inputs[1], args.outputs[0]);
            },
            convolution->workspace()};
  if (g.channels_last()) {
    ConvGeometry first = g;
    first.layout = ImageLayout::channels_first;
    if (const auto convolution = Convolution::find(request.target, kind, first, dtype)) {
      const Turned<S> turned(kind, g, *convolution, size_of(dtype));
      return {[turned](const KernelArgs& args) { turned.run(args); }, turned.workspace()};
    }
  }
  throw DeviceError("[cuda] cuDNN has no deterministic algorithm for a convolution of these sizes");
}

Kernel bind(const KernelRequest& request, ConvKind kind, const ConvGeometry& g) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    if (g.batch == 0)  // an empty batch: sums are zero, and images need no kernel
      return Kernel{[bytes = request.out().type.bytes()](const KernelArgs& args) {
        if (bytes.count > 0)
          EBB_CUDA_CHECK(cudaMemsetAsync(args.outputs[0], 0, static_cast<std::size_t>(bytes.count),
                                         stream_of(args)));
      }};
    const Kernel product = bind_without_bias<S>(request, kind, g);
    if (request.inputs.size() < 3) return product;
    const std::int64_t count = request.out().shape().elements();
    const std::int64_t plane = g.channels_last() ? 1 : g.result.h * g.result.w;
    return Kernel{[product, count, plane, channels = g.out](const KernelArgs& args) {
                    product.run(args);
                    launch({args, "conv2d", item_grid(count), dim3(item_threads)}, add_bias<S>,
                           args.in<S>(2), args.out<S>(), count, plane, channels);
                  },
                  product.workspace};
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
