// Matrix products of four warps on shared memory (wgmma, compute capability 9.0a): warpgroups of
// 128 threads issue them asynchronously and later wait for the results, which are in registers.
//
// c (64, n) += a (64, 16) · b (16, n), n from 64 to 128. Warp w of the group has rows 16 w to 16 w
// + 15 of c and, where it is in registers, of a, laid out over its lanes as described in
// attention/mma.cuh; c[n] are the columns 8 n to 8 n + 7. b, and a where it is in shared memory,
// are given by descriptors of tiles as tile_copy.cuh lays them out.
#pragma once

#include <cstdint>

#include "ops/cuda/element.cuh"

namespace ebb::cuda {

// Describes a tile (rows of 64 elements) that begins at a multiple of 1024: groups of eight rows
// are 1024 bytes apart, and pieces are swizzled over 128 bytes. Serves both ways to read a tile:
// with its rows as rows of a or columns of b (16 elements of every row at a time), and with its
// rows as rows of b (16 rows at a time). Rows longer than 64 elements are several tiles, one after
// the other; `next_tile` is the distance between them in units of 16 bytes.
__device__ inline std::uint64_t tile_descriptor(const void* tile, std::uint64_t next_tile = 1) {
  const std::uint32_t address = static_cast<std::uint32_t>(__cvta_generic_to_shared(tile));
  return static_cast<std::uint64_t>((address & 0x3FFFF) >> 4) | next_tile << 16 | 64ull << 32 |
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

// Sets how many registers each thread of the warpgroup has, more or fewer than at the start of the
// kernel. All of its warps call this; those that take wait until others have given up enough.
template <int count>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ inline void give_up_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
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

// The instruction's operands are listed one by one, so each number of columns has its text.
#define EBB_FOUR(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define EBB_RESULTS_8                                                                        \
  EBB_FOUR(0), EBB_FOUR(1), EBB_FOUR(2), EBB_FOUR(3), EBB_FOUR(4), EBB_FOUR(5), EBB_FOUR(6), \
      EBB_FOUR(7)
#define EBB_RESULTS_10 EBB_RESULTS_8, EBB_FOUR(8), EBB_FOUR(9)
#define EBB_RESULTS_12 EBB_RESULTS_10, EBB_FOUR(10), EBB_FOUR(11)
#define EBB_RESULTS_14 EBB_RESULTS_12, EBB_FOUR(12), EBB_FOUR(13)
#define EBB_RESULTS_16 EBB_RESULTS_14, EBB_FOUR(14), EBB_FOUR(15)
#define EBB_NAMES_8                                                                            \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define EBB_NAMES_10 EBB_NAMES_8 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define EBB_NAMES_12 EBB_NAMES_10 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define EBB_NAMES_14 EBB_NAMES_12 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define EBB_NAMES_16 EBB_NAMES_14 ", %56, %57, %58, %59, %60, %61, %62, %63"
// `factors` names the operands of a and b, `add` that which says whether to add to c, and `flags`
// is for the factors' directions.
#define EBB_PRODUCT(columns, count, type, factors, add, flags, ...)                       \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add                                \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type \
               " {" EBB_NAMES_##count "}, " factors ", add, 1, 1, " flags ";\n}"          \
               : EBB_RESULTS_##count                                                      \
               : __VA_ARGS__)
// For results of `count` times eight columns.
#define EBB_PRODUCT_OF(columns, count, factors, add, flags, ...)             \
  if constexpr (results == count) {                                          \
    if constexpr (std::is_same_v<S, Half>)                                   \
      EBB_PRODUCT(columns, count, "f16", factors, add, flags, __VA_ARGS__);  \
    else                                                                     \
      EBB_PRODUCT(columns, count, "bf16", factors, add, flags, __VA_ARGS__); \
  }
#define EBB_REGISTERS_AND_TILE "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds)

// c = a · b, or c += a · b where `add`. a in registers, b with rows of its tile as rows.
template <class S, int results>
__device__ inline void start_product(float (&c)[results][4], const std::uint32_t (&a)[4],
                                     std::uint64_t b, bool add) {
  static_assert(results >= 8 && results <= 16 && results % 2 == 0);
  const int adds = add;
  EBB_PRODUCT_OF("64", 8, "{%32, %33, %34, %35}, %36", "%37", "1", EBB_REGISTERS_AND_TILE)
  EBB_PRODUCT_OF("80", 10, "{%40, %41, %42, %43}, %44", "%45", "1", EBB_REGISTERS_AND_TILE)
  EBB_PRODUCT_OF("96", 12, "{%48, %49, %50, %51}, %52", "%53", "1", EBB_REGISTERS_AND_TILE)
  EBB_PRODUCT_OF("112", 14, "{%56, %57, %58, %59}, %60", "%61", "1", EBB_REGISTERS_AND_TILE)
  EBB_PRODUCT_OF("128", 16, "{%64, %65, %66, %67}, %68", "%69", "1", EBB_REGISTERS_AND_TILE)
}
// a in shared memory, b with rows of its tile as columns.
template <class S, int results>
__device__ inline void start_product(float (&c)[results][4], std::uint64_t a, std::uint64_t b,
                                     bool add) {
  static_assert(results == 8 || results == 12 || results == 16);
  const int adds = add;
  EBB_PRODUCT_OF("64", 8, "%32, %33", "%34", "0, 0", "l"(a), "l"(b), "r"(adds))
  EBB_PRODUCT_OF("96", 12, "%48, %49", "%50", "0, 0", "l"(a), "l"(b), "r"(adds))
  EBB_PRODUCT_OF("128", 16, "%64, %65", "%66", "0, 0", "l"(a), "l"(b), "r"(adds))
}

#undef EBB_REGISTERS_AND_TILE
#undef EBB_PRODUCT_OF
#undef EBB_PRODUCT
#undef EBB_NAMES_16
#undef EBB_NAMES_14
#undef EBB_NAMES_12
#undef EBB_NAMES_10
#undef EBB_NAMES_8
#undef EBB_RESULTS_16
#undef EBB_RESULTS_14
#undef EBB_RESULTS_12
#undef EBB_RESULTS_10
#undef EBB_RESULTS_8
#undef EBB_FOUR

}  // namespace ebb::cuda
