#include <algorithm>
#include <array>
#include <cstring>

#include "core/parallel.h"
#include "ebb/storage.h"
#include "ops/conv2d/conv2d.h"
#include "ops/pointwise/convert.h"

namespace ebb {

std::int64_t images_at_once(const ConvGeometry& g, Bytes element) {
  constexpr Bytes cache = 1_MiB;  // second-level, of a core
  // Weights are read again for every run of images, so a run should be at least as large as the
  // weights.
  const Bytes room = std::max(threads() * cache, g.weight_elements() * element);
  const Bytes image = (g.image_elements() + g.result_elements()) * element;
  const std::int64_t most = std::max<std::int64_t>(room.count / image.count, 1);
  const std::int64_t runs = (g.batch + most - 1) / most;
  return (g.batch + runs - 1) / runs;
}

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

// An input or output of a kernel for half types: one for each image, or one for all.
struct Operand {
  std::int64_t elements = 0;  // of an image, or of the whole
  bool per_image = false;

  std::int64_t wide_elements(std::int64_t images) const {
    return per_image ? images * elements : elements;
  }
  Bytes wide_bytes(std::int64_t images) const {
    return round_up({wide_elements(images) * 4}, buffer_alignment);
  }
};

// A kernel for half types: a few images at a time are widened to float, convolved and narrowed.
template <class H>
class Widened {
 public:
  Widened(ConvKind kind, const ConvGeometry& g, bool bias)
      : batch_(g.batch), images_(images_at_once(g, size_of(f32))) {
    const auto inner = [&](std::int64_t images) {
      ConvGeometry part = g;
      part.batch = images;
      return bind_float(kind, part, bias);
    };
    whole_ = inner(images_);
    if (batch_ % images_ != 0) last_ = inner(batch_ % images_);

    const Operand x{g.image_elements(), true}, y{g.result_elements(), true},
        weight{g.weight_elements(), false};
    switch (kind) {
      case ConvKind::forward:
        inputs_ = {x, weight}, output_ = y;
        if (bias) inputs_.push_back({g.out, false});
        break;
      case ConvKind::input_grad:
        inputs_ = {weight, y}, output_ = x;
        break;
      case ConvKind::weight_grad:
        inputs_ = {x, y}, output_ = weight;
        break;
    }
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      inputs_at_[i] = take(inputs_[i].wide_bytes(images_));
    output_at_ = take(output_.wide_bytes(images_));
    part_at_ = adds_up() ? take(output_.wide_bytes(images_)) : output_at_;
    inner_at_ = take(std::max(whole_.workspace, last_.workspace));
  }

  Bytes workspace() const { return workspace_; }

  void operator()(const KernelArgs& args) const {
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      if (!inputs_[i].per_image) widen_input(args, i, 0, inputs_[i].elements);
    for (std::int64_t n = 0; n < batch_; n += images_) {
      const std::int64_t images = std::min(images_, batch_ - n);
      for (std::size_t i = 0; i < inputs_.size(); ++i)
        if (inputs_[i].per_image)
          widen_input(args, i, n * inputs_[i].elements, images * inputs_[i].elements);
      const Bytes result_at = n == 0 ? output_at_ : part_at_;
      run_inner(args, images == images_ ? whole_ : last_, result_at);
      if (output_.per_image)
        narrow_output(args, n * output_.elements, images * output_.elements);
      else if (n > 0)
        add_part(args);
    }
    if (!output_.per_image) narrow_output(args, 0, output_.elements);
  }

 private:
  bool adds_up() const { return !output_.per_image && images_ < batch_; }
  Bytes take(Bytes size) {
    const Bytes at = workspace_;
    workspace_ += size;
    return at;
  }

  void widen_input(const KernelArgs& args, std::size_t i, std::int64_t begin,
                   std::int64_t count) const {
    const H* from = args.in<H>(static_cast<int>(i)) + begin;
    float* to = args.scratch<float>(inputs_at_[i]);
    in_pieces(count, [&](std::int64_t at, std::int64_t n) { widen(from + at, to + at, n); });
  }
  void run_inner(const KernelArgs& args, const Kernel& kernel, Bytes result_at) const {
    std::byte* inputs[3] = {};
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      inputs[i] = args.scratch<std::byte>(inputs_at_[i]);
    std::byte* outputs[1] = {args.scratch<std::byte>(result_at)};
    KernelArgs inner = args;
    inner.inputs = {inputs, inputs_.size()};
    inner.outputs = outputs;
    inner.workspace = args.scratch<std::byte>(inner_at_);
    kernel.run(inner);
  }
  void add_part(const KernelArgs& args) const {
    float* total = args.scratch<float>(output_at_);
    const float* part = args.scratch<float>(part_at_);
    in_pieces(output_.elements, [&](std::int64_t at, std::int64_t n) {
      for (std::int64_t k = at; k < at + n; ++k) total[k] += part[k];
    });
  }
  void narrow_output(const KernelArgs& args, std::int64_t begin, std::int64_t count) const {
    const float* from = args.scratch<float>(output_at_);
    H* to = args.out<H>() + begin;
    in_pieces(count, [&](std::int64_t at, std::int64_t n) { narrow(from + at, to + at, n); });
  }

  std::int64_t batch_, images_;
  Kernel whole_, last_;  // for images_ images, and for the rest of the batch if there is one
  std::vector<Operand> inputs_;
  Operand output_;
  std::array<Bytes, 3> inputs_at_{};
  Bytes output_at_, part_at_, inner_at_, workspace_;
};

template <class H>
Kernel bind_widened(ConvKind kind, const ConvGeometry& g, bool bias) {
  Widened<H> widened(kind, g, bias);
  const Bytes workspace = widened.workspace();
  return {std::move(widened), workspace};
}

Kernel bind(const KernelRequest& request, ConvKind kind, const ConvGeometry& g) {
  const bool bias = request.inputs.size() == 3;
  if (g.batch == 0)  // an empty batch: sums are zero, and images need no kernel
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
      return bind_widened<BFloat16>(kind, g, bias);
    case DType::float16:
      return bind_widened<MachineHalf>(kind, g, bias);
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
