// The products of src/ops/matmul/bfloat16_tiles.cpp with AMX's instructions computed by plain code,
// for processors that have AVX-512 BF16 but no tiles. In a program that links this file, the
// library multiplies bfloat16 matrices and attention by these tiles.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ebb::emulated {

// Eight tiles of 16 rows of 64 bytes for every thread. A thread that has not configured them, or
// has released them, gets NaN; the processor would end the process.
struct Tiles {
  alignas(64) std::byte bytes[8][16][64];
  bool configured = false;
};
thread_local Tiles tiles;

void fill_with_nan() { std::memset(tiles.bytes, 0xff, sizeof(tiles.bytes)); }

void configure(const void* config) {
  std::uint8_t bytes[64], wanted[64] = {1};
  for (int tile = 0; tile < 8; ++tile) wanted[16 + 2 * tile] = 64, wanted[48 + tile] = 16;
  std::memcpy(bytes, config, sizeof(bytes));
  tiles.configured = std::memcmp(bytes, wanted, sizeof(bytes)) == 0;
  std::memset(tiles.bytes, 0, sizeof(tiles.bytes));
  if (!tiles.configured) fill_with_nan();
}
void release() {
  tiles.configured = false;
  fill_with_nan();
}

void zero(int tile) {
  if (tiles.configured) std::memset(tiles.bytes[tile], 0, sizeof(tiles.bytes[tile]));
}
void load(int tile, const void* from, std::int64_t stride) {
  if (!tiles.configured) return;
  for (int row = 0; row < 16; ++row)
    std::memcpy(tiles.bytes[tile][row], static_cast<const std::byte*>(from) + row * stride, 64);
}
void store(int tile, void* to, std::int64_t stride) {
  for (int row = 0; row < 16; ++row)
    std::memcpy(static_cast<std::byte*>(to) + row * stride, tiles.bytes[tile][row], 64);
}

// Numbers below the smallest normal one count as 0, in factors and in sums.
float flushed(float x) { return x > -0x1p-126f && x < 0x1p-126f ? 0.0f : x; }

float widened(const std::byte* row, int index) {
  std::uint16_t upper;
  std::memcpy(&upper, row + 2 * index, sizeof(upper));
  const std::uint32_t bits = static_cast<std::uint32_t>(upper) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return flushed(value);
}

// to (16 × 16 float32) += a (16 × 32 bfloat16) · b (16 pairs of 16 lanes). The first numbers of
// pairs and the second ones are summed separately; both sums are added to the tile at the end.
void multiply(int to, int a, int b) {
  if (!tiles.configured) return;
  for (int row = 0; row < 16; ++row)
    for (int lane = 0; lane < 16; ++lane) {
      float sums[2] = {};
      for (int pair = 0; pair < 16; ++pair)
        for (int i = 0; i < 2; ++i)
          sums[i] = flushed(sums[i] + widened(tiles.bytes[a][row], 2 * pair + i) *
                                          widened(tiles.bytes[b][pair], 2 * lane + i));
      float sum;
      std::byte* place = tiles.bytes[to][row] + 4 * lane;
      std::memcpy(&sum, place, sizeof(sum));
      sum = flushed(flushed(sum) + flushed(sums[0] + sums[1]));
      std::memcpy(place, &sum, sizeof(sum));
    }
}

}  // namespace ebb::emulated

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig ebb::emulated::configure
#define _tile_release ebb::emulated::release
#define _tile_zero ebb::emulated::zero
#define _tile_loadd ebb::emulated::load
#define _tile_stored ebb::emulated::store
#define _tile_dpbf16ps ebb::emulated::multiply
// The kernels are the library's; only the check whether they work is replaced.
#define bfloat16_tile_kernels kernels_of_this_processor
#include "ops/matmul/bfloat16_tiles.cpp"
#undef bfloat16_tile_kernels

namespace ebb {

const PanelKernels<BFloat16>* bfloat16_tile_kernels() {
  return bfloat16_vector_kernels() ? &tile_kernels : nullptr;
}

}  // namespace ebb

#endif
