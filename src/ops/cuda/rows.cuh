// Kernels over contiguous rows. A warp or a block processes a row in slots of neighbouring
// elements. A row that fits stays in registers, so that it is read from memory only once.
//
// A row op is a struct whose fields are its arguments, with the function
//
//   template <class S, class Walk> __device__ void row(std::int64_t row, const Walk& walk) const;
#pragma once

#include "ops/cuda/element.cuh"
#include "ops/cuda/group.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/row_axis.h"

namespace ebb::cuda {

enum class Access {
  registers,  // packs, kept after the first walk
  packs,      // packs, read again at each walk
  elements,   // one by one, for rows that are not whole packs
};

// Elements of a row that each thread keeps, 16 or 32 registers of half types. With more elements,
// one warp can process rows that would otherwise need a whole block and its barriers.
inline constexpr int kept_elements = 32, kept_in_long_rows = 64;

// How one thread walks its part of a row.
template <class S, int threads, Access access, int keeps = kept_elements>
struct Walk : Group<threads> {
  using T = Compute<S>;
  static constexpr int width = access == Access::elements ? 1 : pack<S>;  // elements of a slot
  static constexpr int kept = access == Access::registers ? keeps : width;
  std::int64_t columns;

  // Calls body(slot, column): `width` elements from `column` on belong to this thread.
  template <class Body>
  __device__ void slots(const Body& body) const {
    if constexpr (access == Access::registers) {
#pragma unroll
      for (int slot = 0; slot < kept / width; ++slot) {
        const std::int64_t column = (slot * threads + this->lane) * width;
        if (column < columns) body(slot, column);
      }
    } else {
      for (std::int64_t column = this->lane * width; column < columns; column += threads * width)
        body(0, column);
    }
  }

  // A slot's elements from memory, and to it.
  __device__ static void load(const S* from, T (&to)[width]) {
    if constexpr (access == Access::elements)
      to[0] = widen(*from);
    else
      load_pack(from, to);
  }
  __device__ static void store(S* to, const T (&from)[width]) {
    if constexpr (access == Access::elements)
      *to = narrow<S>(from[0]);
    else
      store_pack(to, from);
  }

  // A row that is read more than once. Kept in its storage dtype, so that half types take half the
  // registers.
  struct Row {
    const S* data;
    uint4 packs[kept / width];

    __device__ void get(int slot, std::int64_t column, T (&to)[width]) const {
      if constexpr (access == Access::registers)
        unpack<S>(packs[slot], to);
      else
        load(data + column, to);
    }
  };
  __device__ Row open(const S* data) const {
    Row row;
    row.data = data;
    if constexpr (access == Access::registers)
      slots([&](int slot, std::int64_t column) {
        row.packs[slot] = *reinterpret_cast<const uint4*>(data + column);
      });
    return row;
  }

  // Σ body(value), slot by slot in T and over slots in double.
  template <class Body>
  __device__ double sum_over(const Row& row, const Body& body) const {
    double total = 0.0;
    slots([&](int slot, std::int64_t column) {
      T x[width], part = T(0);
      row.get(slot, column, x);
#pragma unroll
      for (int k = 0; k < width; ++k) part += body(x[k]);
      total += static_cast<double>(part);
    });
    return this->sum(total);
  }
};

template <class Op, class S, int threads, Access access, int keeps>
__global__ void __launch_bounds__(threads == 32 ? 256 : threads)
    row_kernel(Op op, std::int64_t rows, std::int64_t columns) {
  constexpr int per_block = threads == 32 ? 8 : 1;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * per_block + (threads == 32 ? threadIdx.x / 32 : 0);
  if (row >= rows) return;  // whole warps, and blocks of one row have none to spare
  Walk<S, threads, access, keeps> walk;
  walk.lane = static_cast<int>(threadIdx.x) % threads;
  walk.columns = columns;
  op.template row<S>(row, walk);
}

// Runs a row op over all rows; `packs`: whether every row it reads and writes is aligned for packs.
template <class S, class Op>
void launch_rows(const KernelArgs& args, const char* name, const Op& op, RowShape shape,
                 bool packs) {
  const auto start = [&](auto kernel, int threads) {
    const std::int64_t blocks = threads == 32 ? ceil_div(shape.rows, 8) : shape.rows;
    launch({args, name, dim3(static_cast<unsigned>(blocks)),
            dim3(static_cast<unsigned>(threads == 32 ? 256 : threads))},
           kernel, op, shape.rows, shape.columns);
  };
  if constexpr (sizeof(S) <= 4)
    if (packs && shape.columns % pack<S> == 0) {
      if (shape.columns <= 32 * kept_elements)
        return start(row_kernel<Op, S, 32, Access::registers, kept_elements>, 32);
      if constexpr (sizeof(S) == 2)
        if (shape.columns <= 32 * kept_in_long_rows)
          return start(row_kernel<Op, S, 32, Access::registers, kept_in_long_rows>, 32);
      if (shape.columns <= 256 * kept_elements)
        return start(row_kernel<Op, S, 256, Access::registers, kept_elements>, 256);
      return start(row_kernel<Op, S, 512, Access::packs, 0>, 512);
    }
  if (shape.columns <= 1024)
    start(row_kernel<Op, S, 32, Access::elements, 0>, 32);
  else
    start(row_kernel<Op, S, 512, Access::elements, 0>, 512);
}

}  // namespace ebb::cuda
