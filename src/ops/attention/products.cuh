// What the kernels of attention_mma.cuh and attention_grad_mma.cuh multiply: halves, or float32 as
// TF32, either in three products each that keep float32's accuracy or in one (`--tf32`).
#pragma once

#include "ops/attention/float_mma.cuh"
#include "ops/attention/mma.cuh"
#include "ops/attention/problem.cuh"

namespace ebb::attention {

template <class S>
struct HalfProducts {
  using Element = S;
  template <int rows, int columns>
  using Tile = cuda::SharedTile<S, rows, columns>;

  template <int span, class C, class A, class B>
  __device__ static void add_row_products(C& c, const A& a, int row0, const B& b, int column0) {
    cuda::add_row_products<S, span>(c, a, row0, b, column0);
  }
  template <class C, class M, class B>
  __device__ static void add_products(C& c, const M& m, const B& b, int column0) {
    cuda::add_products<S>(c, m, b, column0);
  }
};

template <bool exact>
struct FloatProducts {
  using Element = float;
  template <int rows, int columns>
  using Tile = cuda::FloatTile<rows, columns, exact>;

  template <int span, class C, class A, class B>
  __device__ static void add_row_products(C& c, const A& a, int row0, const B& b, int column0) {
    cuda::add_row_products<span>(c, a, row0, b, column0);
  }
  template <class C, class M, class B>
  __device__ static void add_products(C& c, const M& m, const B& b, int column0) {
    cuda::add_products(c, m, b, column0);
  }
};

// Calls run with the products of a problem.
template <class S, class Run>
void with_products(const CudaProblem& p, const Run& run) {
  if constexpr (std::is_same_v<S, float>) {
    if (p.tf32)
      run(FloatProducts<false>{});
    else
      run(FloatProducts<true>{});
  } else {
    run(HalfProducts<S>{});
  }
}

}  // namespace ebb::attention
