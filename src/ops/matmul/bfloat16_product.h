// Products of bfloat16 matrices on a processor that multiplies them, with float32 sums.
//
// A product is cut into tiles. Both factors of a tile are packed into panels (bfloat16_panels.h) in
// the workspace; threads share the packing and then the products of panels. Every sum runs along
// the inner axis in a fixed order, independent of tiles and threads: results have the same bits for
// any number of threads.
#pragma once

#include "ebb/bytes.h"
#include "ebb/half.h"
#include "ops/matmul/problem.h"

namespace ebb {

class BFloat16Product {
 public:
  enum class Result { bfloat16, float32 };
  enum class Store { overwrite, add };

  // Whether the processor has the instructions.
  static bool available();

  // For products of (rows, inner) by (inner, columns) matrices, or smaller ones.
  BFloat16Product(std::int64_t rows, std::int64_t inner, std::int64_t columns, Result result);

  Bytes workspace() const { return workspace_; }

  struct Factors {
    MatrixLayout a;
    const BFloat16* x = nullptr;
    MatrixLayout b;
    const BFloat16* y = nullptr;
  };
  // Results have rows that lie `stride` elements apart. The bias, of a number a column, may be
  // null.
  void operator()(const Factors& factors, const BFloat16* bias, BFloat16* out, std::int64_t stride,
                  std::byte* workspace, int workers) const;
  void operator()(const Factors& factors, Store store, float* out, std::int64_t stride,
                  std::byte* workspace, int workers) const;

 private:
  struct Target;
  struct Tile;
  void run(const Factors& factors, const Target& target, std::byte* workspace, int workers) const;
  void pack(const Factors& factors, const Tile& tile, int workers) const;
  void multiply(const Target& target, const Tile& tile, int workers) const;

  std::int64_t rows_, columns_, depth_;  // of a tile, at most
  Bytes b_at_, sums_at_, workspace_;     // the first factor's panels lie at 0
};

}  // namespace ebb
