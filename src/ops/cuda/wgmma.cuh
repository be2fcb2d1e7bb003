// Matrix products of four warps on shared memory (wgmma, compute capability 9.0a): warpgroups of
// 128 threads issue them asynchronously and later wait for the results, which are in registers.
//
// c (64, 64) += a (64, 16) · b (16, 64). Warp w of the group has rows 16 w to 16 w + 15 of c and,
// where it is in registers, of a, laid out over its lanes as described in attention/mma.cuh; c[n]
// are the columns 8 n to 8 n + 7. b, and a where it is in shared memory, are given by descriptors
// of tiles as tile_copy.cuh lays them out.
#pragma once

#include <cstdint>

#include "ops/cuda/element.cuh"

namespace ebb::cuda {

// Describes a tile (rows of 64 elements) that begins at a multiple of 1024: groups of eight rows
// are 1024 bytes apart, and pieces are swizzled over 128 bytes. Serves both ways to read a tile:
// with its rows as rows of a or columns of b (16 elements of every row at a time), and with its
// rows as rows of b (16 rows at a time).
__device__ inline std::uint64_t tile_descriptor(const void* tile) {
  const std::uint32_t address = static_cast<std::uint32_t>(__cvta_generic_to_shared(tile));
  return static_cast<std::uint64_t>((address & 0x3FFFF) >> 4) | 1ull << 16 | 64ull << 32 |
         1ull << 62;
}
// In units of the descriptors, 16 bytes: the next 16 elements of every row, the next 16 rows, and
// the next 64 rows.
inline constexpr std::uint64_t next_columns = 2, next_rows = 128, next_group = 512;

// Before products read or add to registers that other instructions wrote.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Ends a group of products, to be waited for together.
__device__ inline void end_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until all but the last `pending` groups of products are done.
template <int pending>
__device__ inline void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Prevents the compiler from moving accesses to these registers across this point. Used before
// products begin and after they are done: any access in between makes the assembler serialise the
// products (it then warns "serialized").
template <int count>
__device__ inline void pin(float (&c)[count][4]) {
#pragma unroll
  for (int n = 0; n < count; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(c[n][e])::"memory");
}

// The instruction's operands are listed one by one; `factors` names those of a and b, and `flags`
// is for their signs and directions.
#define EBB_FOUR(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define EBB_PRODUCT(type, add, factors, flags, ...)                                                \
  asm volatile(                                                                                    \
      "{\n.reg .pred add;\nsetp.ne.b32 add, " add                                                  \
      ", 0;\n"                                                                                     \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                  \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "    \
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " factors                 \
      ", add, 1, 1, " flags ";\n}"                                                                 \
      : EBB_FOUR(0), EBB_FOUR(1), EBB_FOUR(2), EBB_FOUR(3), EBB_FOUR(4), EBB_FOUR(5), EBB_FOUR(6), \
        EBB_FOUR(7)                                                                                \
      : __VA_ARGS__)

// c = a · b, or c += a · b where `add`. a in registers, b with rows of its tile as rows.
template <class S>
__device__ inline void start_product(float (&c)[8][4], const std::uint32_t (&a)[4], std::uint64_t b,
                                     bool add) {
  const int adds = add;
  if constexpr (std::is_same_v<S, Half>)
    EBB_PRODUCT("f16", "%37", "{%32, %33, %34, %35}, %36", "1", "r"(a[0]), "r"(a[1]), "r"(a[2]),
                "r"(a[3]), "l"(b), "r"(adds));
  else
    EBB_PRODUCT("bf16", "%37", "{%32, %33, %34, %35}, %36", "1", "r"(a[0]), "r"(a[1]), "r"(a[2]),
                "r"(a[3]), "l"(b), "r"(adds));
}
// a in shared memory, b with rows of its tile as columns.
template <class S>
__device__ inline void start_product(float (&c)[8][4], std::uint64_t a, std::uint64_t b, bool add) {
  const int adds = add;
  if constexpr (std::is_same_v<S, Half>)
    EBB_PRODUCT("f16", "%34", "%32, %33", "0, 0", "l"(a), "l"(b), "r"(adds));
  else
    EBB_PRODUCT("bf16", "%34", "%32, %33", "0, 0", "l"(a), "l"(b), "r"(adds));
}

#undef EBB_PRODUCT
#undef EBB_FOUR

}  // namespace ebb::cuda
