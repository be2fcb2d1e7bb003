// The CUDA source of every row of the table compiles; NVRTC needs no GPU for that.
#include <gtest/gtest.h>

#include "core/cuda/runtime_kernel.h"
#include "ebb/error.h"
#include "ebb/node.h"
#include "ebb/ops.h"
#include "ops/pointwise/source_cuda.h"

namespace ebb {
namespace {

using Kind = PointwiseAccess::Kind;

bool nvrtc_present() {
  try {
    return !cuda::compile("extern \"C\" __global__ void nothing() {}", "sm_90").empty();
  } catch (const DeviceError&) {
    return false;
  }
}

// One function of each op that has a row, in the first dtype that it takes.
std::vector<FusedAttributes> programs() {
  std::vector<FusedAttributes> result;
  for (const Op* op : all_ops()) {
    const PointwiseRow* row = op->pointwise();
    if (!row || row->name == "cast") continue;
    for (DType dtype : {bf16, f32, b8, i64}) {
      if (!row->tiles[static_cast<std::size_t>(tile_type(dtype))]) continue;
      FusedAttributes program{.input_dtypes = {}, .code = {{row, {}, dtype, {}}}, .shape = {64}};
      std::vector<TensorType> types;
      for (int i = 0; i < row->arity; ++i) {
        program.input_dtypes.push_back(row->name == "where" && i == 0 ? b8 : dtype);
        program.code[0].operands.push_back(i);
        types.push_back({{64}, program.input_dtypes.back()});
      }
      if (row->arity > 0)
        program.code[0].dtype =
            op->infer({*op, types, device::cuda(0), {}}, NoAttributes{})[0].dtype;
      result.push_back(std::move(program));
      break;
    }
  }
  const PointwiseRow* cast_row = cast(zeros({1}), f64).node()->op().pointwise();
  for (DType from : all_dtypes)
    result.push_back({.input_dtypes = {from}, .code = {{cast_row, {0}, i64, {}}}, .shape = {64}});
  return result;
}

TEST(PointwiseCuda, EveryRowCompiles) {
  if (!nvrtc_present()) GTEST_SKIP() << "NVRTC is not installed";
  for (const FusedAttributes& program : programs()) {
    PointwiseAccess access;
    access.inputs.assign(program.input_dtypes.size(), Kind::pack);
    access.width = 4;
    EXPECT_NO_THROW((void)cuda::compile(pointwise_source(program, access), "sm_90"))
        << program.text();
  }
}

TEST(PointwiseCuda, EveryAccessCompiles) {
  if (!nvrtc_present()) GTEST_SKIP() << "NVRTC is not installed";
  const PointwiseRow* add_row = pointwise_op("add").pointwise();
  for (const Kind kind : {Kind::scalar, Kind::same, Kind::pack, Kind::single})
    for (const int rank : {1, 3}) {
      const FusedAttributes program{
          .input_dtypes = {f32, f32}, .code = {{add_row, {0, 1}, f32, {}}}, .shape = {64}};
      PointwiseAccess access;
      access.inputs = {kind, Kind::scalar};
      access.rank = rank, access.width = kind == Kind::single ? 1 : 4;
      access.wide_index = rank == 3;
      EXPECT_NO_THROW((void)cuda::compile(pointwise_source(program, access), "sm_90"));
    }
}

}  // namespace
}  // namespace ebb
