// A product by itself: magnitudes, codes and steps of both factors in the workspace, by the kernels
// of the ops that make them.
#include <algorithm>
#include <array>

#include "ops/fp8/fp8.h"
#include "ops/workspace_areas.h"

namespace ebb {
namespace {

using Codes = Fp8QuantiseAttributes::Codes;

Arg contiguous_arg(const TensorType& type) { return {type, contiguous_strides(type.shape)}; }

// One factor, encoded for its side of the product.
class EncodedFactor {
 public:
  EncodedFactor(const KernelRequest& request, int input, Fp8 format, bool transposed,
                WorkspaceAreas& areas)
      : input_(static_cast<std::size_t>(input)) {
    const Arg& x = request.in(input);
    const Shape& shape = x.shape();
    magnitudes_ = contiguous_arg({{fp8_parts}, f32});
    codes_ = contiguous_arg({transposed ? Shape{shape[1], shape[0]} : shape, u8});
    step_ = contiguous_arg({{}, f32});
    magnitudes_at_ = areas.add(magnitudes_.type.bytes());
    codes_at_ = areas.add(codes_.type.bytes());
    step_at_ = areas.add(step_.type.bytes());
    find_ = fp8_amax_op().bind({fp8_amax_op(), {&x, 1}, {&magnitudes_, 1}, request.target},
                               NoAttributes{});
    const std::array inputs{x, magnitudes_}, outputs{codes_, step_};
    encode_ = fp8_quantise_op().bind(
        {fp8_quantise_op(), inputs, outputs, request.target},
        Fp8QuantiseAttributes{format, transposed ? Codes::transposed : Codes::plain});
  }
  const Arg& codes() const { return codes_; }
  const Arg& step() const { return step_; }
  std::byte* codes_in(std::byte* workspace) const { return workspace + codes_at_.count; }
  std::byte* step_in(std::byte* workspace) const { return workspace + step_at_.count; }

  void run(const KernelArgs& args) const {
    std::byte* magnitudes = args.workspace + magnitudes_at_.count;
    const std::array inputs{args.inputs[input_], magnitudes};
    const std::array outputs{codes_in(args.workspace), step_in(args.workspace)};
    KernelArgs own = args;
    own.inputs = std::span(inputs).first(1), own.outputs = {&magnitudes, 1};
    find_.run(own);
    own.inputs = inputs, own.outputs = outputs;
    encode_.run(own);
  }

 private:
  std::size_t input_;
  Arg magnitudes_, codes_, step_;
  Bytes magnitudes_at_, codes_at_, step_at_;
  Kernel find_, encode_;  // without a workspace
};

}  // namespace

Kernel bind_fp8_product_apart(const KernelRequest& request, const Fp8ProductAttributes& at) {
  WorkspaceAreas areas;
  const EncodedFactor a(request, 0, at.a, at.product.transpose_a, areas),
      b(request, 1, at.b, !at.product.transpose_b, areas);
  const bool bias = request.inputs.size() == 3;
  std::vector<Arg> inputs{a.codes(), b.codes(), a.step(), b.step()};
  if (bias) inputs.push_back(request.in(2));
  const Kernel multiply =
      fp8_matmul_op().bind({fp8_matmul_op(), inputs, request.outputs, request.target},
                           Fp8MatmulAttributes{.a = at.a, .b = at.b, .bias = bias});
  const Bytes beside = areas.total();
  return {[=](const KernelArgs& args) {
            a.run(args), b.run(args);
            const std::array all{a.codes_in(args.workspace), b.codes_in(args.workspace),
                                 a.step_in(args.workspace), b.step_in(args.workspace),
                                 args.inputs.back()};
            KernelArgs own = args;
            own.inputs = std::span(all).first(bias ? 5 : 4);
            own.workspace = args.workspace + beside.count;
            multiply.run(own);
          },
          beside + multiply.workspace};
}

}  // namespace ebb
