// Pointwise programs on CUDA: NVRTC compiles them for the way in which their operands are reached.
#include "core/cuda/check.h"
#include "core/cuda/cuda.h"
#include "core/cuda/runtime_kernel.h"
#include "ops/pointwise/operands_cuda.h"
#include "ops/resident/steps.h"

namespace ebb {
namespace {

constexpr std::int64_t threads_of_a_block = 256;

struct Bound {
  PointwiseOperands operands;
  cudaKernel_t kernel = nullptr;
  unsigned blocks = 0;

  void operator()(const KernelArgs& args) const {
    if (blocks == 0) return;
    PointwiseParameters p = operands.at(args);
    p.out = args.outputs[0];
    void* list[] = {&p};
    EBB_CUDA_CHECK(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks),
                                    dim3(static_cast<unsigned>(threads_of_a_block)), list, 0,
                                    static_cast<cudaStream_t>(args.stream)));
  }
};

std::optional<resident::Form> form_of(std::string_view name) {
  if (name == "gelu") return resident::Form::gelu;
  if (name == "gelu_tanh") return resident::Form::gelu_tanh;
  if (name == "silu") return resident::Form::silu;
  if (name == "relu") return resident::Form::relu;
  return {};
}

// An activation function, or one times another tensor, by the numbers of its inputs.
struct Activation {
  resident::Form form;
  int x = 0, factor = -1;
};
std::optional<Activation> activation(const FusedAttributes& program) {
  const std::vector<PointwiseInstruction>& code = program.code;
  const auto form = form_of(code.front().row->name);
  const int inputs = static_cast<int>(program.input_dtypes.size());
  if (!form || code.front().operands.size() != 1) return {};
  Activation found{*form, code.front().operands[0]};
  if (code.size() == 1) return found;
  if (code.size() != 2 || code[1].row->name != "mul") return {};
  const std::vector<int>& factors = code[1].operands;
  found.factor = factors[0] == inputs ? factors[1] : factors[1] == inputs ? factors[0] : -1;
  return found.factor >= 0 && found.factor < inputs ? std::optional(found) : std::nullopt;
}

// The call as a step of a resident kernel, or nothing.
std::function<std::optional<resident::Task>(const KernelArgs&)> resident_task(
    const KernelRequest& request, const FusedAttributes& program) {
  const auto found = activation(program);
  const Shape& shape = request.out().shape();
  if (!found || !is_half(request.out().dtype()) || shape.rank() == 0 || shape.elements() == 0 ||
      shape.elements() > resident::most_elements)
    return {};
  for (const PointwiseInstruction& step : program.code)
    if (step.dtype != request.out().dtype()) return {};
  for (const Arg& arg : request.inputs)
    if (arg.dtype() != request.out().dtype() || arg.shape().elements() != shape.elements() ||
        !arg.contiguous())
      return {};
  const auto columns = static_cast<std::int32_t>(shape.back()),
             count = static_cast<std::int32_t>(shape.elements() / shape.back());
  return [=](const KernelArgs& args) -> std::optional<resident::Task> {
    const auto input = [&](int i) { return args.inputs[static_cast<std::size_t>(i)]; };
    resident::Elementwise e{.rows = {.x = input(found->x), .stride = columns, .form = found->form},
                            .out = args.outputs[0],
                            .count = count,
                            .columns = columns};
    if (found->factor >= 0) e.rows.second = input(found->factor), e.rows.second_stride = columns;
    return e;
  };
}

}  // namespace

Kernel bind_pointwise_cuda(const KernelRequest& request, const FusedAttributes& program) {
  Bound bound{.operands = {request, program}};
  const PointwiseAccess& access = bound.operands.access;
  const std::int64_t elements = program.shape.elements();
  const std::int64_t items =
      elements / access.width + (access.rank == 1 ? elements % access.width : 0);
  bound.blocks = static_cast<unsigned>((items + threads_of_a_block - 1) / threads_of_a_block);

  if (request.target.purpose == Purpose::run)
    bound.kernel =
        cuda::runtime_kernel(request.target.device, pointwise_source(program, access), "pointwise");
  auto task = resident_task(request, program);
  if (!task) return {bound};
  resident::Step step = resident::step(request, bound);
  step.task = std::move(task);
  return {step};
}

}  // namespace ebb
