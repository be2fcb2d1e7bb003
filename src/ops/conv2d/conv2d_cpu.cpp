#include <cstring>

#include "core/parallel.h"
#include "ebb/storage.h"
#include "ops/conv2d/conv2d.h"
#include "ops/pointwise/convert.h"

namespace ebb {
namespace {

Kernel bind_float(ConvKind kind, const ConvGeometry& g, bool bias) {
  if (auto kernel = bind_conv_onednn(kind, g, bias, f32)) return *kernel;
  return bind_conv_columns<float>(kind, g, bias);
}

template <class Body>
void in_pieces(std::int64_t count, const Body& body) {
  parallel_for(count, 32768,
               [&](std::int64_t begin, std::int64_t end) { body(begin, end - begin); });
}

// A kernel for half types: everything is widened to float, convolved and narrowed.
template <class H>
struct Widened {
  Kernel inner;
  std::vector<std::int64_t> inputs;  // elements of each
  std::int64_t output = 0;

  static Bytes size(std::int64_t elements) { return round_up({elements * 4}, buffer_alignment); }
  Bytes workspace() const {
    Bytes total = size(output);
    for (std::int64_t elements : inputs) total += size(elements);
    return total + inner.workspace;
  }
  void operator()(const KernelArgs& args) const {
    std::byte* wide[3] = {};
    Bytes at;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      wide[i] = args.workspace + at.count;
      const H* from = args.in<H>(static_cast<int>(i));
      float* to = args.scratch<float>(at);
      in_pieces(inputs[i],
                [&](std::int64_t begin, std::int64_t n) { widen(from + begin, to + begin, n); });
      at += size(inputs[i]);
    }
    float* result = args.scratch<float>(at);
    std::byte* out[1] = {args.workspace + at.count};
    at += size(output);
    KernelArgs inner_args = args;
    inner_args.inputs = {wide, inputs.size()};
    inner_args.outputs = out;
    inner_args.workspace = args.workspace + at.count;
    inner.run(inner_args);
    in_pieces(output, [&](std::int64_t begin, std::int64_t n) {
      narrow(result + begin, args.out<H>() + begin, n);
    });
  }
};

template <class H>
Kernel bind_widened(const KernelRequest& request, ConvKind kind, const ConvGeometry& g, bool bias) {
  Widened<H> widened{bind_float(kind, g, bias), {}, request.out().shape().elements()};
  for (const Arg& arg : request.inputs) widened.inputs.push_back(arg.shape().elements());
  const Bytes workspace = widened.workspace();
  return {std::move(widened), workspace};
}

Kernel bind(const KernelRequest& request, ConvKind kind, const ConvGeometry& g) {
  const bool bias = request.inputs.size() == 3;
  if (g.batch == 0)  // sums over no images; images that are not there need no kernel
    return {[bytes = request.out().type.bytes()](const KernelArgs& args) {
      if (bytes.count > 0) std::memset(args.outputs[0], 0, static_cast<std::size_t>(bytes.count));
    }};
  switch (request.out().dtype()) {
    case DType::float64:
      return bind_conv_columns<double>(kind, g, bias);
    case DType::float32:
      return bind_float(kind, g, bias);
    case DType::bfloat16:
      if (auto kernel = bind_conv_onednn(kind, g, bias, bf16)) return *kernel;
      return bind_widened<BFloat16>(request, kind, g, bias);
    case DType::float16:
      return bind_widened<Half>(request, kind, g, bias);
    default:
      request.no_kernel(request.out().dtype());
  }
}

}  // namespace

Kernel bind_conv2d_cpu(const KernelRequest& request, const Conv2dAttributes& a) {
  return bind(
      request, ConvKind::forward,
      conv_geometry(request.in(0).shape(), request.in(1).shape(), request.out().shape(), a));
}

Kernel bind_conv2d_input_grad_cpu(const KernelRequest& request, const Conv2dAttributes& a) {
  return bind(
      request, ConvKind::input_grad,
      conv_geometry(request.out().shape(), request.in(0).shape(), request.in(1).shape(), a));
}

Kernel bind_conv2d_weight_grad_cpu(const KernelRequest& request, const Conv2dAttributes& a) {
  return bind(
      request, ConvKind::weight_grad,
      conv_geometry(request.in(0).shape(), request.out().shape(), request.in(1).shape(), a));
}

}  // namespace ebb
