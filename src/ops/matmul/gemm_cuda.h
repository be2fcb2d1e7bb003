// Matrix products on cuBLASLt, for kernels that are built from them.
#pragma once

#include <memory>
#include <optional>

#include "ebb/op.h"
#include "ops/fp8/codec.h"
#include "ops/matmul/problem.h"

namespace ebb::cuda {

// The workspace limit of a product; its actual workspace is known after binding.
inline constexpr Bytes gemm_workspace_limit = 32_MiB;

// The formats of two factors in 8-bit floating point.
struct Fp8Factors {
  Fp8 a, b;

  // Sums of gradients need all bits of float32; those of activations may keep fewer, which is
  // faster.
  bool fast_sums() const { return a == Fp8::e4m3 && b == Fp8::e4m3; }
};

// out (rows, columns) = a · b [+ bias] [+ out or another matrix], in row-major order, or
// a · b · gelu'(another matrix). float32 is multiplied as such unless TF32 is allowed; half types
// are summed in float32.
struct GemmSpec {
  MatrixLayout a, b;
  DType dtype = f32;  // of both factors
  DType out = f32;    // the same, or float32 for half factors
  // Factors are uint8 codes of these formats: a as it is, b transposed. The result is bfloat16.
  std::optional<Fp8Factors> codes = {};
  std::int64_t out_lead = 0;  // elements from one row of the result to the next
  // Several products at once, elements from one to the next.
  std::int64_t batches = 1, batch_a = 0, batch_b = 0, batch_out = 0;
  bool bias = false;        // (columns), of the result's dtype
  bool accumulate = false;  // adds to the output, or to the other matrix
  // Times the derivative of gelu_tanh at the other matrix; not with a bias. The derivative is
  // accurate only to half precision.
  bool gelu_grad = false;
  bool tf32 = false;
  // Bytes that the addresses of a, b, and of bias, the result and the other matrix are multiples
  // of.
  std::int64_t align_a = 16, align_b = 16, align_out = 16;
};

class Gemm {
 public:
  // By the algorithm of the tuning. A product that is not there is planned with the largest
  // workspace, and runs by the library's first choice.
  Gemm(const Target& target, const GemmSpec& spec);
  // The same, or nothing when the library has no algorithm.
  static std::optional<Gemm> find(const Target& target, const GemmSpec& spec);

  Bytes workspace() const { return workspace_; }
  double ms() const { return ms_; }  // measured; 0: it was not
  // What a product reads in addition to its factors.
  struct Beside {
    const void* bias = nullptr;
    const void* other = nullptr;                       // lies as the result does
    const float *step_a = nullptr, *step_b = nullptr;  // of codes, on the device
  };
  void run(const KernelArgs& args, const void* a, const void* b, void* out, std::byte* workspace,
           const Beside& beside) const;
  void run(const KernelArgs& args, const void* a, const void* b, void* out, std::byte* workspace,
           const void* bias = nullptr, const void* other = nullptr) const {
    run(args, a, b, out, workspace, Beside{.bias = bias, .other = other});
  }

 private:
  Gemm() = default;
  bool bind(const Target& target, const GemmSpec& spec);

  struct Bound;
  std::shared_ptr<const Bound> bound_;  // null unless it is to run
  Bytes workspace_;
  double ms_ = 0.0;
};

}  // namespace ebb::cuda
