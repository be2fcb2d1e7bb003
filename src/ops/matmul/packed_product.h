// Products of float32 or bfloat16 matrices, with float32 sums, on a processor with AVX-512 (for
// bfloat16, AVX-512 BF16 or AMX).
//
// A product is cut into tiles. Both factors of a tile are packed into panels (panels.h) in the
// workspace; threads share the packing and then the products of panels. Every sum runs along the
// inner axis in a fixed order, independent of tiles and threads: results have the same bits for any
// number of threads.
#pragma once

#include "ebb/bytes.h"
#include "ebb/half.h"
#include "ops/matmul/panels.h"
#include "ops/matmul/problem.h"

namespace ebb {

// What happens to the numbers that a product's sums are written to.
enum class Store { overwrite, add };

template <class T>
class PackedProduct {
 public:
  // The type of the results: T, with a bias and rounded once, or float32 sums.
  enum class Result { numbers, sums };

  // Whether the processor has the instructions.
  static bool available();

  // For products of (rows, inner) by (inner, columns) matrices, or smaller ones.
  PackedProduct(std::int64_t rows, std::int64_t inner, std::int64_t columns, Result result,
                const PanelKernels<T>* kernels = panel_kernels<T>());

  Bytes workspace() const { return workspace_; }

  struct Factors {
    MatrixLayout a;
    const T* x = nullptr;
    MatrixLayout b;
    const T* y = nullptr;
  };
  // Results have rows that lie `stride` elements apart. The bias, of a number a column, may be
  // null.
  void write(const Factors& factors, const T* bias, T* out, std::int64_t stride,
             std::byte* workspace, int workers) const;
  void sum(const Factors& factors, Store store, float* out, std::int64_t stride,
           std::byte* workspace, int workers) const;

 private:
  struct Target;
  struct Tile;
  std::int64_t panel_of(std::int64_t rows) const;
  void run(const Factors& factors, const Target& target, std::byte* workspace, int workers) const;
  void pack(const Factors& factors, const Tile& tile, bool same_second, int workers) const;
  void multiply(const Target& target, const Tile& tile, int workers) const;

  const PanelKernels<T>* kernels_;
  std::int64_t rows_, columns_, depth_;  // of a tile, at most
  Bytes b_at_, sums_at_, workspace_;     // the first factor's panels lie at 0
};

extern template class PackedProduct<float>;
extern template class PackedProduct<BFloat16>;

}  // namespace ebb
