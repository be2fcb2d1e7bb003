// Chains of elementwise functions on float32 whose intermediate results stay in vector registers.
//
// A tile function (tiles.h) reads its operands from the first-level cache and writes its result
// there. In a chain every function takes the result of the one before, which nothing else reads.
// That result is handed on in as many vector registers as the calling convention has for arguments:
// the functions of a chain call one another in turn ("threaded code"), once for each block of
// elements, and only other operands are loaded.
//
// Only functions of one rounding take part, so that an element has the bits that the tile functions
// give it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/pointwise/row.h"

namespace ebb::chain {

#if defined(__AVX512F__)
inline constexpr int vector_bytes = 64;
#elif defined(__AVX__)
inline constexpr int vector_bytes = 32;
#else
inline constexpr int vector_bytes = 16;
#endif
typedef float Vector __attribute__((vector_size(vector_bytes)));
inline constexpr std::int64_t lanes = vector_bytes / 4;
inline constexpr std::int64_t block = 8 * lanes;  // elements handed on at a time

// One function of a chain. It combines the block that it is handed with one at `at` of each of its
// operands in memory, whose addresses `operands` points at, and calls the next link's function.
//
// Addresses change from tile to tile and are stored apart from the links: a link that was written
// just before it is read would wait for all earlier stores, those to memory included.
struct Link {
  using Function = void (*)(const Link* link, const float* const* operands, std::int64_t at,
                            float* out, Vector, Vector, Vector, Vector, Vector, Vector, Vector,
                            Vector);
  Function function = nullptr;
};

// The link of a row that starts a chain, with its first operand handed on by `first_link`, and of
// one that takes operand `position` from the function before; the other operands are in memory.
// Null if there is none. A comparison hands on a mask and only starts chains; `where` takes that
// mask as its first operand and never starts one.
Link starting_link(const PointwiseRow& row);
Link taking_link(const PointwiseRow& row, std::size_t position);

// The link before the first function, which loads its first operand, and the one after the last
// function, which stores the result to `out`.
Link first_link();
Link last_link();

// Fetches elements into the cache, or those that are there: any address will do.
inline void prefetch(const float* from, std::int64_t count) {
  constexpr std::int64_t line = 16;
  for (std::int64_t i = 0; i < count; i += line) __builtin_prefetch(from + i);
}

// Runs links over elements [0, count), which must be a multiple of `block`.
inline void run(const Link* links, const float* const* operands, std::int64_t count, float* out) {
  for (std::int64_t at = 0; at < count; at += block)
    links->function(links, operands, at, out, Vector{}, Vector{}, Vector{}, Vector{}, Vector{},
                    Vector{}, Vector{}, Vector{});
}

}  // namespace ebb::chain
