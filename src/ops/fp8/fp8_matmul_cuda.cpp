#include <cuda_runtime.h>
#include <fmt/core.h>

#include "core/cuda/check.h"
#include "core/cuda/cuda.h"
#include "ebb/error.h"
#include "ops/fp8/fp8.h"
#include "ops/matmul/gemm_cuda.h"

namespace ebb {
namespace {

using namespace cuda;

// Tensor cores multiply 8-bit floating point from compute capability 8.9 on. A device that is not
// here is known only by its rates.
void require_fp8(Device device) {
  if (device.index >= device_count()) return;
  const Properties p = properties(device);
  if (p.major * 10 + p.minor >= 89) return;
  throw DeviceError(
      fmt::format("[fp8_matmul] products in fp8 need a GPU of compute capability 8.9 or above, but "
                  "{} has {}.{}: "
                  "train in split-bf16",
                  p.name, p.major, p.minor));
}

const void* copied(const KernelArgs& args, void* to, const void* from, Bytes size) {
  EBB_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<std::size_t>(size.count),
                                 cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(args.stream)));
  return to;
}

}  // namespace

Kernel bind_fp8_matmul_cuda(const KernelRequest& request, const Fp8MatmulAttributes& a) {
  require_fp8(request.target.device);
  const std::int64_t rows = request.in(0).shape()[0], columns = request.in(1).shape()[0],
                     inner = request.in(0).shape()[1];
  GemmSpec spec{.a = MatrixLayout::plain(rows, inner),
                .b = MatrixLayout::swapped(inner, columns),
                .dtype = u8,
                .out = bf16,
                .codes = Fp8Factors{a.a, a.b}};
  spec.out_lead = columns;
  spec.batch_out = rows * columns;
  spec.bias = a.bias, spec.accumulate = a.added;
  const Gemm gemm(request.target, spec);
  // The library wants 16 bytes of alignment. Codes have it, as they come from a kernel; a bias or a
  // matrix that is a view may not.
  const auto apart = [&](int input) { return request.in(input).offset * 2 % 16 != 0; };
  const Bytes bias{2 * columns}, result{2 * rows * columns};
  const bool copies_bias = a.bias && apart(4), copies_added = a.added && apart(a.bias ? 5 : 4);
  const Bytes bias_at = round_up(gemm.workspace(), 16_B);
  return {[=](const KernelArgs& args) {
            Gemm::Beside beside{.step_a = args.in<float>(2), .step_b = args.in<float>(3)};
            if (a.bias) beside.bias = args.in<BFloat16>(4);
            if (a.added) beside.other = args.in<BFloat16>(a.bias ? 5 : 4);
            if (copies_bias)
              beside.bias = copied(args, args.scratch<std::byte>(bias_at), beside.bias, bias);
            if (copies_added)
              beside.other = copied(args, args.out<std::byte>(), beside.other, result);
            gemm.run(args, args.in<std::uint8_t>(0), args.in<std::uint8_t>(1), args.out<BFloat16>(),
                     args.workspace, beside);
          },
          copies_bias ? bias_at + bias : gemm.workspace(), gemm.ms()};
}

}  // namespace ebb
