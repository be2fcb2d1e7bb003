// Tensor cores for float32 tiles in shared memory.
//
// One mma instruction multiplies a 16 × 8 matrix A by an 8 × 8 matrix B, both of TF32 (float32 with
// a mantissa of 10 bits), and adds to a 16 × 8 matrix of float. With g = lane / 4 and t = lane % 4,
// a thread has of
//   A  (g, t), (g + 8, t), (g, t + 4) and (g + 8, t + 4);
//   B  rows t and t + 4 of column g;
//   C  rows g and g + 8, columns 2t and 2t + 1.
// The hardware ignores the low 13 bits of factors.
//
// TF32 alone loses float32's accuracy. So a factor is split into its value rounded to TF32 and the
// difference, and three of the four products are added: small · big, big · small and big · big.
// What is left out is at most 2⁻²² of a product. Accumulation on tensor cores rounds towards zero,
// which is a bias that grows with the number of steps: sums over a tile start from zero and are
// added to the result in float32's own arithmetic.
//
// Any order of the summed index serves as long as A and B agree on it, and any order of the columns
// of B as long as the result is written accordingly. Both orders are chosen so that a thread's
// elements lie next to each other in shared memory:
//   products of rows with rows      element 2s + e of a thread's 8 t .. 8 t + 7 is row t + 4 e of
//                                   step s, of the four steps of 32 columns;
//   products of scores with rows    row 8 k + 2 t + e of the tile is row t + 4 e of step k, and
//                                   column 32 m + 4 g + j is column g of block 4 m + j.
#pragma once

#include "ops/attention/mma.cuh"

namespace ebb::cuda {

// `count` elements of a factor: rounded to TF32, and what is left of them if `exact`.
template <bool exact, int count>
struct FactorParts {
  std::uint32_t big[count], small[exact ? count : 1];

  template <class... Values>
  __device__ void set(Values... values) {
    int i = 0;
    (set_one(i++, values), ...);
  }

 private:
  __device__ void set_one(int i, float x) {
    if constexpr (exact) {
      // A NaN may become another number here, but then the difference is NaN.
      big[i] = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
      small[i] = __float_as_uint(x - __uint_as_float(big[i]));
    } else {
      asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(big[i]) : "f"(x));
    }
  }
};

__device__ inline void multiply_add_tf32(float (&c)[4], const std::uint32_t (&a)[4],
                                         const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// c[first + n] += a · b[n]. Products with the same sum are kept apart: each waits for the one
// before.
template <bool exact, int blocks, int count>
__device__ inline void multiply_add(float (&c)[count][4], int first, const FactorParts<exact, 4>& a,
                                    const FactorParts<exact, 2> (&b)[blocks]) {
  if constexpr (exact) {
#pragma unroll
    for (int n = 0; n < blocks; ++n) multiply_add_tf32(c[first + n], a.small, b[n].big);
#pragma unroll
    for (int n = 0; n < blocks; ++n) multiply_add_tf32(c[first + n], a.big, b[n].small);
  }
#pragma unroll
  for (int n = 0; n < blocks; ++n) multiply_add_tf32(c[first + n], a.big, b[n].big);
}

// `rows` rows of `columns` floats. Rows are four floats apart from a multiple of 32, so that both
// ways of reading below find 16-byte pieces of eight neighbouring lanes in different banks.
template <int rows, int columns, bool exact>
struct FloatTile {
  static_assert(columns % 32 == 0);
  static constexpr int pieces = columns / 4;
  float data[rows][columns + 4];

  __device__ float4 piece(int row, int column) const {
    return *reinterpret_cast<const float4*>(&data[row][column]);
  }

  // Rows from `from` on, `stride` elements apart, of which `count` exist with `size` elements each;
  // all else becomes zero. `whole`: every row is made of whole pieces, aligned to 16 bytes.
  template <int threads>
  __device__ void load(const float* from, std::int64_t stride, int count, int size, bool whole) {
    // A thread has the same columns of several rows.
    constexpr int across = pieces > 16 ? 32 : pieces;  // threads
    const int thread = static_cast<int>(threadIdx.x), left = thread % across * 4;
    const float* at = from + thread / across * stride + left;
#pragma unroll 2
    for (int row = thread / across; row < rows;
         row += threads / across, at += threads / across * stride)
#pragma unroll
      for (int column = left; column < columns; column += 4 * across) {
        if (whole) {
          const bool inside = row < count && column < size;
          copy_async(shared_address(&data[row][column]), inside ? at + column - left : from,
                     inside);
        } else {
          for (int i = 0; i < 4; ++i)
            data[row][column + i] = row < count && column + i < size ? at[column - left + i] : 0.0f;
        }
      }
  }
};

// c (16, 8 · count) += rows row0.. of `a` · (rows 0.. of `b`)ᵀ, of both `span` columns from
// column0 on.
template <int span, bool exact, int rows_a, int rows_b, int columns, int count>
__device__ inline void add_row_products(float (&c)[count][4],
                                        const FloatTile<rows_a, columns, exact>& a, int row0,
                                        const FloatTile<rows_b, columns, exact>& b, int column0) {
  static_assert(rows_b == 8 * count && span % 32 == 0 && span <= columns);
  constexpr int blocks = count < 4 ? count : 4;  // multiplied at once, limited by registers
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll 2
  for (int column = column0 + 8 * t; column < column0 + span; column += 32)
#pragma unroll
    for (int half = 0; half < 8; half += 4) {
      const float4 low = a.piece(row0 + g, column + half),
                   high = a.piece(row0 + g + 8, column + half);
      FactorParts<exact, 4> x[2];
      x[0].set(low.x, high.x, low.y, high.y);
      x[1].set(low.z, high.z, low.w, high.w);
#pragma unroll
      for (int first = 0; first < count; first += blocks) {
        FactorParts<exact, 2> y[2][blocks];
#pragma unroll
        for (int n = 0; n < blocks; ++n) {
          const float4 row = b.piece(8 * (first + n) + g, column + half);
          y[0][n].set(row.x, row.y);
          y[1][n].set(row.z, row.w);
        }
#pragma unroll
        for (int s = 0; s < 2; ++s) multiply_add(c, first, x[s], y[s]);
      }
    }
}

// c (16, 8 · count) += m (16, rows) · columns column0.. of b.
template <bool exact, int rows, int columns, int count, int steps>
__device__ inline void add_products(float (&c)[count][4], const float (&m)[steps][4],
                                    const FloatTile<rows, columns, exact>& b, int column0) {
  static_assert(rows == 8 * steps && count % 4 == 0);
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int block = 0; block < count; block += 4) {
    float sum[4][4] = {};
#pragma unroll
    for (int k = 0; k < steps; ++k) {
      FactorParts<exact, 4> x;
      x.set(m[k][0], m[k][2], m[k][1], m[k][3]);
      const float4 even = b.piece(8 * k + 2 * t, column0 + 8 * block + 4 * g),
                   odd = b.piece(8 * k + 2 * t + 1, column0 + 8 * block + 4 * g);
      FactorParts<exact, 2> y[4];
      y[0].set(even.x, odd.x), y[1].set(even.y, odd.y);
      y[2].set(even.z, odd.z), y[3].set(even.w, odd.w);
      multiply_add(sum, 0, x, y);
    }
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) c[block + n][e] += sum[n][e];
  }
}

// Rows of results of add_products: c as rows g and g + 8 of `out`, which has `size` columns, times
// `factor`. Four columns are written at once where rows begin at whole pieces.
template <int count>
__device__ inline void write_rows(float* out, std::int64_t stride, int rows, int size,
                                  const float (&c)[count][4], const float (&factor)[2]) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
  const bool pieces =
      size % 4 == 0 && stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(out) % 16 == 0;
#pragma unroll
  for (int block = 0; block < count; block += 4)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = g + e / 2 * 8, column = 8 * block + 8 * t + e % 2 * 4;
      if (row >= rows || column >= size) continue;
      float* to = out + row * stride + column;
      const float by = factor[e / 2];
      const float4 four = make_float4(c[block][e] * by, c[block + 1][e] * by, c[block + 2][e] * by,
                                      c[block + 3][e] * by);
      if (pieces) {
        *reinterpret_cast<float4*>(to) = four;
      } else {
        to[0] = four.x;
        if (column + 1 < size) to[1] = four.y;
        if (column + 2 < size) to[2] = four.z;
        if (column + 3 < size) to[3] = four.w;
      }
    }
}

}  // namespace ebb::cuda
