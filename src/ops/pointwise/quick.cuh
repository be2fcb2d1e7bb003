// Activation functions in half types for kernels that do not compile a program of their own. The
// arithmetic is that of source_cuda.cpp, so that both give the same bits.
#pragma once

#include "ops/cuda/element.cuh"

namespace ebb::cuda {

__device__ inline float quick_power_of_two(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ inline float quick_reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ inline float quick_gelu(float x) {
  const float bell = quick_power_of_two(x * x * -0.72134752044448170368f);
  const float t = quick_reciprocal(__fmaf_rn(0.374766594f, fabsf(x), 1.0f));
  float sum = __fmaf_rn(t, -0.177778767f, 0.393688106f);
  sum = __fmaf_rn(t, sum, 0.172448866f);
  sum = __fmaf_rn(t, sum, 0.313560343f);
  sum = __fmaf_rn(t, sum, 0.298117796f);
  const float below = 0.5f * t * sum * bell;
  return x * (x < 0.0f ? below : 1.0f - below);
}
__device__ inline float quick_gelu_tanh(float x) {
  return x * quick_reciprocal(1.0f +
                              quick_power_of_two(x * __fmaf_rn(x * x, -0.10294324f, -2.3022082f)));
}
__device__ inline float silu(float x) { return x * (1.0f / (1.0f + exponential(-x))); }

}  // namespace ebb::cuda
