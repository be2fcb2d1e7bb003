#include "ops/fused_reduce/source_cuda.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/dispatch.h"
#include "ops/reduce/fold_text.h"

namespace ebb {
namespace {

using Kind = PointwiseAccess::Kind;
using Walk = FusedReduceAccess::Walk;

// What the device headers expect of their includes. Shapes are for the host and only named.
constexpr std::string_view names = R"(
namespace std {
typedef long int64_t;
typedef int int32_t;
typedef unsigned int uint32_t;
}
namespace ebb {
constexpr int max_rank = 8;
struct Shape {
  int rank() const;
  std::int64_t operator[](int) const;
};
typedef Shape Strides;
}
)";
static_assert(max_rank == 8);

std::string_view reduction_name(ReduceKind kind) {
  switch (kind) {
    case ReduceKind::sum:
      return "Sum";
    case ReduceKind::sum_squares:
      return "SumSquares";
    case ReduceKind::max:
      return "Max";
    case ReduceKind::min:
      break;
  }
  return "Min";
}

// The number of slots that are fetched before the first is used. The bytes that a thread has in
// flight stay about the same for any number of operands.
int in_flight(const PointwiseAccess& operands, int of_one) {
  const auto varying =
      operands.inputs.size() - static_cast<std::size_t>(std::count(
                                   operands.inputs.begin(), operands.inputs.end(), Kind::scalar));
  for (std::size_t n = 1; n < varying && of_one > 1; n *= 2) of_one /= 2;
  return of_one;
}

// Fetches the operands of a slot from memory.
std::string fetch(const FusedAttributes& program, const FusedReduceAccess& access) {
  const PointwiseAccess& operands = access.operands;
  const bool grouped = operands.width == access.width;
  std::string members, loads;
  for (std::size_t i = 0; i < operands.inputs.size(); ++i) {
    const std::string_view type = stored_type(program.input_dtypes[i]);
    const std::string from = fmt::format("((const {}*)p.in[{}])", type, i);
    switch (operands.inputs[i]) {
      case Kind::scalar:
        break;
      case Kind::same:
        members += fmt::format("    {} x{};\n", type, i);
        loads += fmt::format("    slot.x{0} = {1}[at{0}];\n", i, from);
        break;
      case Kind::pack:
        members += fmt::format("    Pack<{}, width> x{};\n", type, i);
        loads += fmt::format("    slot.x{0}.load({1} + at{0});\n", i, from);
        break;
      case Kind::single:
        members += fmt::format("    {} x{}[width];\n", type, i);
        loads += fmt::format("    slot.x{0}[k] = {1}[at{0}];\n", i, from);
        break;
    }
  }
  // If operands are accessed one element at a time, a group is one element.
  const std::string_view first = grouped && access.width > 1
                                     ? "    {\n    Index rest = slot.group; (void)rest;\n"
                                     : "#pragma unroll\n    for (int k = 0; k < width; ++k) {\n"
                                       "    Index rest = slot.group * width + k; (void)rest;\n";
  return fmt::format(
      "  struct Slot {{\n    Index group;\n{}  }};\n"
      "  Slot fetch(long long at) const {{\n    Slot slot;\n    slot.group = (Index)at / width;\n"
      "{}{}{}    }}\n    return slot;\n  }}\n",
      members, first, operand_places(operands), loads);
}

// The elements of a slot, rounded to the dtype in which they would be stored.
std::string values(const FusedReduceAttributes& a, const FusedReduceAccess& access) {
  std::string text = fmt::format(
      "  void values(const Slot& slot, Value (&to)[width]) const {{\n#pragma unroll\n"
      "    for (int k = 0; k < width; ++k)\n"
      "      to[k] = rounded<{}>(evaluate(p, random, slot.group * width + k",
      stored_type(a.evaluated().dtype));
  for (std::size_t i = 0; i < access.operands.inputs.size(); ++i) {
    constexpr std::string_view formats[] = {", widen(s{})", ", widen(slot.x{})",
                                            ", widen(slot.x{}.values[k])", ", widen(slot.x{}[k])"};
    text += fmt::format(fmt::runtime(formats[static_cast<int>(access.operands.inputs[i])]), i);
  }
  return text + "));\n  }\n";
}

}  // namespace

std::string fused_reduce_source(const FusedReduceAttributes& a, const FusedReduceAccess& access) {
  const DType dtype = a.evaluated().dtype;
  const DType result = reduced_dtype(a.kind, dtype);
  // As fold.cuh has it: sums of integers in int64, which the device code calls long.
  const bool sums = a.kind == ReduceKind::sum || a.kind == ReduceKind::sum_squares;
  const std::string_view folded = is_integer(dtype) && sums ? "std::int64_t" : computed_type(dtype);
  std::string text = pointwise_functions(a.program, access.operands);
  text += names;
  text += fold_text();
  text += fmt::format(R"(
namespace fold = ebb::cuda::fold;
typedef fold::{}<{}> Reduction;
struct Output {{
  typedef {} Result;
  Result* out;
  Reduction::Wide* partial;
  void write(long results, long slice, long result, Reduction::Wide value) const {{
    if (partial)
      partial[slice * results + result] = value;
    else
      out[result] = Narrow<Result>::of(({})value);
  }}
}};
)",
                      reduction_name(a.kind), folded, stored_type(result), folded);

  text += fmt::format(
      "struct Source {{\n  typedef {} Value;\n"
      "  static constexpr int width = {}, rows_in_flight = {}, columns_in_flight = {};\n"
      "  const PointwiseParameters& p;\n  PointwiseRandom random;\n",
      computed_type(dtype), access.width, in_flight(access.operands, 4),
      in_flight(access.operands, 8));
  std::string scalars;  // read once
  for (std::size_t i = 0; i < access.operands.inputs.size(); ++i)
    if (access.operands.inputs[i] == Kind::scalar) {
      const std::string_view type = stored_type(a.program.input_dtypes[i]);
      text += fmt::format("  {} s{};\n", type, i);
      scalars += fmt::format(", *(const {}*)p.in[{}]", type, i);
    }
  text += fetch(a.program, access) + values(a, access) + "};\n";

  text += R"(
extern "C" __global__ void __launch_bounds__(256) fused_reduce(
    const __grid_constant__ PointwiseParameters p, const __grid_constant__ fold::Problem problem,
    const Output output) {
  )" + random_state(a.program);
  text += fmt::format("  const Source source{{p, random{}}};\n", scalars);
  text += access.walk == Walk::columns ? "  fold::columns<Reduction>(problem, source, output);\n"
          : access.walk == Walk::warps ? "  fold::rows<Reduction, 32>(problem, source, output);\n"
                                       : "  fold::rows<Reduction, 256>(problem, source, output);\n";
  return text + "}\n";
}

}  // namespace ebb
