#include "ops/pointwise/operands_cuda.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>

#include "core/cuda/cuda.h"
#include "ebb/error.h"

namespace ebb {
namespace {

using Kind = PointwiseAccess::Kind;

constexpr std::int64_t access_bytes = 16;

static_assert(sizeof(PointwiseRandom) == sizeof(RandomState));
static_assert(sizeof(std::declval<PointwiseParameters>().extent) / 8 == max_rank);
static_assert(sizeof(std::declval<PointwiseParameters>().in) / 8 == max_cuda_inputs);
static_assert(sizeof(std::declval<PointwiseParameters>().numbers) / sizeof(PointwiseNumbers) ==
              max_cuda_numbers);

// The output's axes; neighbouring axes are merged if every input is contiguous across them.
struct JoinedAxes {
  Shape shape;
  std::vector<Strides> strides;  // of each input, 0 along broadcast axes

  JoinedAxes(const KernelRequest& request, const Shape& out) : strides(request.inputs.size()) {
    for (int axis = 0; axis < out.rank(); ++axis) {
      if (out[axis] == 1) continue;
      std::vector<std::int64_t> steps;
      for (const Arg& arg : request.inputs) {
        const int own = axis - (out.rank() - arg.shape().rank());
        steps.push_back(own < 0 || arg.shape()[own] == 1 ? 0 : arg.strides[own]);
      }
      const int last = shape.rank() - 1;
      bool joins = last >= 0;
      for (std::size_t i = 0; joins && i < steps.size(); ++i)
        joins = strides[i][last] == steps[i] * out[axis];
      if (joins) {
        shape[last] *= out[axis];
        for (std::size_t i = 0; i < steps.size(); ++i) strides[i][last] = steps[i];
      } else {
        shape.push_back(out[axis]);
        for (std::size_t i = 0; i < steps.size(); ++i) strides[i].push_back(steps[i]);
      }
    }
    if (shape.rank() == 0) {  // one element
      shape.push_back(1);
      for (Strides& s : strides) s.push_back(0);
    }
  }
  int last() const { return shape.rank() - 1; }

  // Whether groups of `width` elements of an input can be read at once wherever they lie.
  bool takes_groups(std::size_t input, const Arg& arg, std::int64_t width) const {
    const Strides& own = strides[input];
    if (own[last()] == 0) return true;
    if (own[last()] != 1) return false;
    const std::int64_t size = size_of(arg.dtype()).count;
    const std::int64_t alignment = std::min(access_bytes, width * size);
    if (arg.offset * size % alignment != 0) return false;
    for (int axis = 0; axis < last(); ++axis)
      if (own[axis] * size % alignment != 0) return false;
    return true;
  }
};

// Whether threads may take groups of `width` elements.
bool fits(const KernelRequest& request, const JoinedAxes& axes, std::int64_t width) {
  bool fits = axes.shape.rank() == 1 || axes.shape.back() % width == 0;
  for (std::size_t i = 0; fits && i < request.inputs.size(); ++i)
    fits = axes.takes_groups(i, request.inputs[i], width);
  return fits;
}

// As many as 16-byte accesses can move.
std::int64_t widest(const KernelRequest& request, DType result) {
  std::int64_t smallest = size_of(result).count;
  for (const Arg& arg : request.inputs)
    if (arg.shape().elements() > 1) smallest = std::min(smallest, size_of(arg.dtype()).count);
  return std::min<std::int64_t>(8, access_bytes / smallest);
}

}  // namespace

PointwiseOperands::PointwiseOperands(const KernelRequest& request, const FusedAttributes& program,
                                     std::optional<int> width) {
  const JoinedAxes axes(request, program.shape);
  const std::int64_t elements = program.shape.elements();
  std::int64_t group = width ? *width : widest(request, program.code.back().dtype);
  while (group > 1 && !fits(request, axes, group)) group = width ? 1 : group / 2;
  access.rank = axes.shape.rank(), access.width = static_cast<int>(group);
  access.wide_index = elements >= (std::int64_t{1} << 31);

  PointwiseParameters& p = parameters;
  if (request.inputs.size() > static_cast<std::size_t>(max_cuda_inputs))
    throw Error(fmt::format("[{}] a fused program has at most {} inputs on CUDA, but {} came",
                            request.op.name(), max_cuda_inputs, request.inputs.size()));
  std::size_t numbers = 0;
  for (const PointwiseInstruction& step : program.code)
    if (step.row->arity == 0) {
      if (numbers == static_cast<std::size_t>(max_cuda_numbers))
        throw Error(fmt::format("[{}] a fused program has at most {} generators on CUDA",
                                request.op.name(), max_cuda_numbers));
      p.numbers[numbers++] = {step.numbers.a, step.numbers.b, step.numbers.key.value};
    }
  p.count = static_cast<unsigned long long>(elements);
  p.groups = static_cast<unsigned long long>(elements / group);
  for (int axis = 0; axis < axes.shape.rank(); ++axis)
    p.extent[axis] = static_cast<unsigned long long>(axis == axes.last() ? axes.shape[axis] / group
                                                                         : axes.shape[axis]);
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    bool varies = false;
    for (int axis = 0; axis < axes.shape.rank(); ++axis) {
      const std::int64_t stride = axes.strides[i][axis];
      varies |= stride != 0;
      p.stride[i][axis] = axis == axes.last() ? stride * group : stride;
    }
    access.inputs.push_back(!varies                             ? Kind::scalar
                            : group == 1                        ? Kind::single
                            : axes.strides[i][axes.last()] == 0 ? Kind::same
                                                                : Kind::pack);
  }
}

PointwiseParameters PointwiseOperands::at(const KernelArgs& args) const {
  PointwiseParameters p = parameters;
  for (std::size_t i = 0; i < args.inputs.size(); ++i) p.in[i] = args.inputs[i];
  p.random = reinterpret_cast<const PointwiseRandom*>(&args.control->random);
  return p;
}

}  // namespace ebb
