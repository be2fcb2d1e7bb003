// Tensor cores for tiles in shared memory.
//
// One mma instruction multiplies a 16 × 16 matrix A by a 16 × 8 matrix B, both of a half type, and
// adds to a 16 × 8 matrix of float. With g = lane / 4 and t = lane % 4, a thread has of
//   A  rows g and g + 8, columns 2t, 2t + 1, 2t + 8 and 2t + 9, in four registers;
//   B  rows 2t, 2t + 1, 2t + 8 and 2t + 9 of column g, in two;
//   C  rows g and g + 8, columns 2t and 2t + 1.
// So two neighbouring results C, rounded and packed, form a factor A.
#pragma once

#include <cstdint>

#include "ops/cuda/element.cuh"

namespace ebb::cuda {

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// Four 8 × 8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void load_matrices(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ inline void load_matrices_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

template <class S>
__device__ inline void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
  if constexpr (std::is_same_v<S, Half>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <class S>
__device__ inline std::uint32_t packed(float low, float high) {
  std::uint32_t result;
  if constexpr (std::is_same_v<S, Half>)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

// Sixteen columns of results, as a factor.
template <class S>
__device__ inline void as_factor(std::uint32_t (&a)[4], const float (&left)[4],
                                 const float (&right)[4]) {
  a[0] = packed<S>(left[0], left[1]), a[1] = packed<S>(left[2], left[3]);
  a[2] = packed<S>(right[0], right[1]), a[3] = packed<S>(right[2], right[3]);
}

// 2^x by the special-function unit: within two units in the last place; subnormals become zero.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Asynchronous copies, waited for in groups.
__device__ inline void copy_async(std::uint32_t to, const void* from, bool inside) {
  const int bytes = inside ? 16 : 0;  // the rest of the 16 is zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ inline void end_group() { asm volatile("cp.async.commit_group;"); }
template <int pending>
__device__ inline void wait_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// `rows` rows of `columns` elements of a half type, in pieces of 16 bytes. Piece c of row r lies at
// place c ^ (r % 8) of its row, so that the eight rows of a matrix lie in different banks.
template <class S, int rows, int columns>
struct SharedTile {
  static constexpr int pieces = columns / 8;
  uint4 data[rows * pieces];

  __device__ static int place(int row, int piece) { return row * pieces + (piece ^ (row % 8)); }
  __device__ std::uint32_t address(int row, int piece) const {
    return shared_address(&data[place(row, piece)]);
  }

  // Rows from `from` on, `stride` elements apart, of which `count` exist with `size` elements each;
  // all else becomes zero. `whole`: every row is made of whole pieces, aligned to 16 bytes.
  template <int threads>
  __device__ void load(const S* from, std::int64_t stride, int count, int size, bool whole) {
    for (int n = static_cast<int>(threadIdx.x); n < rows * pieces; n += threads) {
      const int row = n / pieces, piece = n % pieces;
      const S* at = from + row * stride + piece * 8;
      if (whole) {
        const bool inside = row < count && piece * 8 < size;
        copy_async(address(row, piece), inside ? at : from, inside);
      } else {
        std::uint32_t words[4] = {};
        for (int i = 0; i < 8; ++i)
          if (row < count && piece * 8 + i < size)
            words[i / 2] |= static_cast<std::uint32_t>(at[i].bits) << (16 * (i % 2));
        data[place(row, piece)] = make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }

  // A: rows row0 + 0..15, columns 16 k + 0..15.
  __device__ void factor(std::uint32_t (&a)[4], int row0, int k) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    load_matrices(a, address(row0 + lane % 16, 2 * k + lane / 16));
  }
  // B of the transpose, for two neighbouring groups of columns: rows row0 + 0..15 of the tile are
  // its columns, columns 16 k + 0..15 of the tile its rows. b[0], b[1]: the first eight.
  __device__ void transposed_factor(std::uint32_t (&b)[4], int row0, int k) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    load_matrices(b, address(row0 + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
  }
  // B as it lies: rows 16 k + 0..15 of the tile, columns 16 n + 0..15.
  __device__ void plain_factor(std::uint32_t (&b)[4], int k, int n) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    load_matrices_transposed(b, address(16 * k + lane % 16, 2 * n + lane / 16));
  }
};

// c (16, 8 · count) += rows row0.. of `a` · (rows 0.. of `b`)ᵀ, of both `span` columns from column0
// on, a multiple of 16.
template <class S, int span, int rows_a, int rows_b, int columns, int count>
__device__ inline void add_row_products(float (&c)[count][4],
                                        const SharedTile<S, rows_a, columns>& a, int row0,
                                        const SharedTile<S, rows_b, columns>& b, int column0) {
#pragma unroll
  for (int k = 0; k < span / 16; ++k) {
    // Loads everything before the first product, so that one wait serves many products.
    std::uint32_t x[4], y[count / 2][4];
    a.factor(x, row0, column0 / 16 + k);
#pragma unroll
    for (int n = 0; n < count / 2; ++n) b.transposed_factor(y[n], 16 * n, column0 / 16 + k);
#pragma unroll
    for (int n = 0; n < count / 2; ++n) {
      multiply_add<S>(c[2 * n], x, y[n][0], y[n][1]);
      multiply_add<S>(c[2 * n + 1], x, y[n][2], y[n][3]);
    }
  }
}

// c (16, 8 · count) += m (16, rows), rounded, · columns column0.. of b; column0 is a multiple
// of 16.
template <class S, int rows, int columns, int count, int steps>
__device__ inline void add_products(float (&c)[count][4], const float (&m)[steps][4],
                                    const SharedTile<S, rows, columns>& b, int column0) {
  static_assert(rows == 8 * steps);
  constexpr int group = count / 2 < 8 ? count / 2 : 8;  // loaded at once, limited by registers
#pragma unroll
  for (int k = 0; k < steps / 2; ++k) {
    std::uint32_t x[4];
    as_factor<S>(x, m[2 * k], m[2 * k + 1]);
#pragma unroll
    for (int first = 0; first < count / 2; first += group) {
      std::uint32_t y[group][4];
#pragma unroll
      for (int n = 0; n < group; ++n) b.plain_factor(y[n], k, column0 / 16 + first + n);
#pragma unroll
      for (int n = 0; n < group; ++n) {
        multiply_add<S>(c[2 * (first + n)], x, y[n][0], y[n][1]);
        multiply_add<S>(c[2 * (first + n) + 1], x, y[n][2], y[n][3]);
      }
    }
  }
}

// Rows of results: c as rows g and g + 8 of `out`, which has `size` columns, times `factor`. Pairs
// of columns are written at once where rows begin at whole words.
template <class S, int count>
__device__ inline void write_rows(S* out, std::int64_t stride, int rows, int size,
                                  const float (&c)[count][4], const float (&factor)[2]) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
  const bool pairs =
      size % 2 == 0 && stride % 2 == 0 && reinterpret_cast<std::uintptr_t>(out) % 4 == 0;
#pragma unroll
  for (int n = 0; n < count; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = g + 8 * half, column = 8 * n + 2 * t;
      if (row >= rows || column >= size) continue;
      const float low = c[n][2 * half] * factor[half], high = c[n][2 * half + 1] * factor[half];
      S* to = out + row * stride + column;
      if (pairs) {
        *reinterpret_cast<std::uint32_t*>(to) = packed<S>(low, high);
      } else {
        to[0] = narrow<S>(low);
        if (column + 1 < size) to[1] = narrow<S>(high);
      }
    }
}

}  // namespace ebb::cuda
