// Fused chains and trees of elementwise functions, and the two rows that are plain moves: cast and
// identity.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ebb/error.h"
#include "ebb/node.h"
#include "ebb/ops.h"
#include "ops/cuda_kernels.h"
#include "ops/pointwise/pointwise.h"

namespace ebb {
namespace {

// Cast has no tiles of its own: the kernel looks the pair of dtypes up with cast_tile.
const PointwiseRow cast_row{"cast", 1, {}, "boolean ? R(a != T(0)) : convert<R>(a)", 2.0};

std::vector<TensorType> infer_cast(const Call& call, const CastAttributes& a) {
  return {{call.shape(0), a.dtype}};
}

std::vector<Tensor> cast_gradient(const GradientCall& call, const CastAttributes& a) {
  if (!is_floating(a.dtype)) return {Tensor{}};
  return {cast(call.grad(), call.input_type(0).dtype)};
}

// A dtype as an item of a list of attributes.
struct DTypeItem {
  DType dtype = f32;
  DTypeItem() = default;
  DTypeItem(DType value) : dtype(value) {}
  operator DType() const { return dtype; }
  void visit(AttributeFields& field) { field("dtype", dtype); }
};

const PointwiseRow* row_named(std::string_view name) {
  for (const Op* op : all_ops())
    if (op->pointwise() && op->pointwise()->name == name) return op->pointwise();
  throw ValueError(fmt::format("there is no elementwise function \"{}\"", name));
}

const Op& op_of(const PointwiseRow& row) {
  const auto ops = all_ops();
  return **std::find_if(ops.begin(), ops.end(),
                        [&](const Op* op) { return op->pointwise() == &row; });
}

FusedAttributes single(const PointwiseRow& row, const KernelRequest& request) {
  return {.input_dtypes = {request.in(0).dtype()},
          .code = {{&row, {0}, request.out().dtype(), {}}},
          .shape = request.out().shape()};
}

std::vector<TensorType> infer_fused(const Call& call, const FusedAttributes& a) {
  if (call.inputs.size() != a.input_dtypes.size())
    call.fail_value(fmt::format("its program takes {} inputs, but {} came", a.input_dtypes.size(),
                                call.count()));
  for (int i = 0; i < call.count(); ++i) {
    Shape joined;
    if (call.dtype(i) != a.input_dtypes[static_cast<std::size_t>(i)] ||
        !broadcast(call.shape(i), a.shape, joined) || joined != a.shape)
      call.fail_shape(fmt::format("input {} must be {} and broadcast to {}", i,
                                  name(a.input_dtypes[static_cast<std::size_t>(i)]),
                                  to_string(a.shape)));
  }
  return {{a.shape, a.code.back().dtype}};
}

std::vector<Tensor> fused_reference(std::span<const Tensor> inputs, const FusedAttributes& a) {
  std::vector<Tensor> values(inputs.begin(), inputs.end());
  const Device device = inputs.empty() ? device::cpu : inputs.front().device();
  for (const PointwiseInstruction& step : a.code) {
    std::vector<Tensor> operands;
    for (int operand : step.operands) operands.push_back(values[static_cast<std::size_t>(operand)]);
    if (step.row == &cast_row)
      values.push_back(cast(operands[0], step.dtype));
    else if (step.row->arity > 0)
      values.push_back(apply1(pointwise_op(step.row->name), operands));
    else
      for (const Op* op : all_ops())
        if (op->pointwise() == step.row)
          values.push_back(
              create(*op, device, GeneratorAttributes{a.shape, step.dtype, step.numbers}));
  }
  return {expand(values.back(), a.shape)};
}

template <class A>
bool accepts_any(const Arg&, int, const A&) {
  return true;
}

}  // namespace

const Op& cast_op() {
  static const TypedOp<CastAttributes> op({
      .name = "cast",
      .summary = "converts to another dtype, rounding to nearest even",
      .infer = infer_cast,
      .gradient = cast_gradient,
      .in_place = {{.output = 0, .input = 0}},
      .accepts = accepts_any<CastAttributes>,
      .cpu = [](const KernelRequest& r,
                const CastAttributes&) { return bind_pointwise(r, single(cast_row, r)); },
      .cuda = EBB_CUDA_KERNEL([](const KernelRequest& r, const CastAttributes&) {
        return bind_pointwise_cuda(r, single(cast_row, r));
      }),
      .operations = cast_row.work,
      .pointwise = &cast_row,
  });
  return op;
}

const Op& identity_op() {
  static const TypedOp<NoAttributes> op({
      .name = "identity",
      .summary = "a contiguous copy",
      .infer = [](const Call& call, const NoAttributes&) { return std::vector{call.inputs[0]}; },
      .gradient = [](const GradientCall& call,
                     const NoAttributes&) { return std::vector{call.grad()}; },
      .accepts = accepts_any<NoAttributes>,
      .cpu = [](const KernelRequest& r,
                const NoAttributes&) { return bind_pointwise(r, single(cast_row, r)); },
      .cuda = EBB_CUDA_KERNEL([](const KernelRequest& r, const NoAttributes&) {
        return bind_pointwise_cuda(r, single(cast_row, r));
      }),
      .operations = 5.0,  // copied tensors usually consist of short contiguous pieces
  });
  return op;
}

const Op& fused_op() {
  static const TypedOp<FusedAttributes> op({
      .name = "fused",
      .summary = "a chain or tree of elementwise functions in one pass over memory",
      .infer = infer_fused,
      .reference = fused_reference,
      .in_place = {{0, 0}, {0, 1}, {0, 2}, {0, 3}, {0, 4}, {0, 5}, {0, 6}, {0, 7}},
      .accepts = accepts_any<FusedAttributes>,
      .cpu = bind_pointwise,
      .cuda = EBB_CUDA_KERNEL(bind_pointwise_cuda),
      .cost =
          [](std::span<const TensorType> inputs, std::span<const TensorType> outputs,
             const FusedAttributes& a) {
            double operations = 0.0;
            for (const PointwiseInstruction& step : a.code)
              if (step.row != full_op().pointwise()) operations += step.row->work;  // made once
            return default_cost(inputs, outputs, operations);
          },
  });
  return op;
}

void PointwiseInstruction::visit(AttributeFields& field) {
  std::string function(row ? row->name : "");
  field("function", function);
  row = row_named(function);
  std::vector<std::int64_t> read(operands.begin(), operands.end());
  field("operands", read);
  operands.assign(read.begin(), read.end());
  field("dtype", dtype);
  numbers.visit(field);
}

void FusedAttributes::visit(AttributeFields& field) {
  std::vector<DTypeItem> dtypes(input_dtypes.begin(), input_dtypes.end());
  field.list("inputs", dtypes);
  input_dtypes.assign(dtypes.begin(), dtypes.end());
  field.list("code", code);
  field("shape", shape);
  check();
}

// Programs that passes make are right by construction; one may also come from a file.
void FusedAttributes::check() const {
  if (code.empty()) throw ValueError("an elementwise program needs at least one function");
  std::vector<TensorType> values;
  for (const DType dtype : input_dtypes) values.push_back({shape, dtype});
  for (const PointwiseInstruction& step : code) {
    const Op& op = op_of(*step.row);
    std::vector<TensorType> operands;
    for (const int operand : step.operands) {
      if (operand < 0 || operand >= static_cast<int>(values.size()))
        throw ValueError(fmt::format("{} reads value {}, but {} come before it", op.name(), operand,
                                     values.size()));
      operands.push_back(values[static_cast<std::size_t>(operand)]);
    }
    if (static_cast<int>(operands.size()) != step.row->arity)
      throw ValueError(fmt::format("{} takes {} operands, but has {}", op.name(), step.row->arity,
                                   operands.size()));
    Attributes attributes;
    if (step.row == &cast_row) attributes = CastAttributes{step.dtype};
    if (step.row->arity == 0) attributes = GeneratorAttributes{shape, step.dtype, step.numbers};
    const TensorType result = op.infer({op, operands, device::cpu, ""}, attributes).front();
    if (result != TensorType{shape, step.dtype})
      throw ValueError(fmt::format("{} gives {}, not {}", op.name(), to_string(result),
                                   to_string(TensorType{shape, step.dtype})));
    values.push_back(result);
  }
}

std::string FusedAttributes::text() const {
  std::vector<std::string_view> names;
  for (const PointwiseInstruction& step : code) names.push_back(step.row->name);
  return fmt::format("{}", fmt::join(names, " "));
}

FusedAttributes program_of(const Node& node) {
  FusedAttributes program{.input_dtypes = {}, .code = {}, .shape = node.outputs().front().shape};
  PointwiseInstruction step{.row = node.op().pointwise(),
                            .operands = {},
                            .dtype = node.outputs().front().dtype,
                            .numbers = {}};
  for (std::size_t i = 0; i < node.inputs().size(); ++i) {
    program.input_dtypes.push_back(node.inputs()[i].dtype());
    step.operands.push_back(static_cast<int>(i));
  }
  if (step.row->arity == 0) step.numbers = node.attributes().as<GeneratorAttributes>().numbers;
  program.code.push_back(std::move(step));
  return program;
}

Tensor cast(const Tensor& x, DType dtype) {
  return x.dtype() == dtype ? x : apply1(cast_op(), {x}, CastAttributes{dtype});
}
Tensor contiguous(const Tensor& x) { return apply1(identity_op(), {x}); }

}  // namespace ebb
