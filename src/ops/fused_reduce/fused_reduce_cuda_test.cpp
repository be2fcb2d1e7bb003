// The CUDA sources of reductions that evaluate their elements compile; NVRTC needs no GPU for that.
#include <gtest/gtest.h>

#include "core/cuda/runtime_kernel.h"
#include "ebb/error.h"
#include "ops/fused_reduce/source_cuda.h"

namespace ebb {
namespace {

using Kind = PointwiseAccess::Kind;
using Walk = FusedReduceAccess::Walk;

bool nvrtc_present() {
  try {
    return !cuda::compile("extern \"C\" __global__ void nothing() {}", "sm_90").empty();
  } catch (const DeviceError&) {
    return false;
  }
}

// Σ (a + b), or another reduction of it.
FusedReduceAttributes of_sum(DType dtype, ReduceKind kind) {
  const PointwiseRow* add = pointwise_op("add").pointwise();
  return {.program = {.input_dtypes = {dtype, dtype},
                      .code = {{add, {0, 1}, dtype, {}}},
                      .shape = {64, 64}},
          .shape = {64, 64},
          .kind = kind,
          .reduce = {{0}, false}};
}

void expect_compiles(const FusedReduceAttributes& a, const FusedReduceAccess& access) {
  EXPECT_NO_THROW((void)cuda::compile(fused_reduce_source(a, access), "sm_90"));
}

TEST(FusedReduceCuda, EveryDtypeAndKindCompiles) {
  if (!nvrtc_present()) GTEST_SKIP() << "NVRTC is not installed";
  for (const DType dtype : {f64, f32, f16, bf16, i64, i32, u8})
    for (ReduceKind kind :
         {ReduceKind::sum, ReduceKind::sum_squares, ReduceKind::max, ReduceKind::min}) {
      FusedReduceAccess access;
      access.width =
          is_floating(dtype) && dtype != f64 ? static_cast<int>(16 / size_of(dtype).count) : 1;
      access.operands.width = access.width;
      access.operands.inputs.assign(2, access.width > 1 ? Kind::pack : Kind::single);
      access.walk = kind == ReduceKind::sum ? Walk::columns : Walk::blocks;
      expect_compiles(of_sum(dtype, kind), access);
    }
}

TEST(FusedReduceCuda, EveryAccessCompiles) {
  if (!nvrtc_present()) GTEST_SKIP() << "NVRTC is not installed";
  const FusedReduceAttributes a = of_sum(bf16, ReduceKind::sum);
  for (const Walk walk : {Walk::warps, Walk::blocks, Walk::columns})
    for (const Kind kind : {Kind::scalar, Kind::same, Kind::pack, Kind::single}) {
      FusedReduceAccess access{.operands = {}, .width = 8, .walk = walk};
      access.operands.inputs = {kind, Kind::scalar};
      access.operands.rank = kind == Kind::pack ? 1 : 3;
      access.operands.width = kind == Kind::single ? 1 : 8;
      access.operands.wide_index = kind == Kind::same;
      expect_compiles(a, access);
    }
}

TEST(FusedReduceCuda, GeneratorsCompile) {
  if (!nvrtc_present()) GTEST_SKIP() << "NVRTC is not installed";
  for (const Op* op : all_ops()) {
    const PointwiseRow* row = op->pointwise();
    if (!row || row->arity > 0) continue;
    const FusedReduceAttributes a{
        .program = {.input_dtypes = {}, .code = {{row, {}, f32, {}}}, .shape = {64}},
        .shape = {64},
        .kind = ReduceKind::max,
        .reduce = {{0}, false}};
    for (const int width : {1, 4}) {
      FusedReduceAccess access{.operands = {}, .width = width};
      access.operands.width = width;
      expect_compiles(a, access);
    }
  }
}

}  // namespace
}  // namespace ebb
