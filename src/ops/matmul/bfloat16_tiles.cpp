// Panels of bfloat16, with the tiles of AMX.
//
// A panel of the first factor holds, for each step of 32 numbers along the inner axis, a row of 64
// bytes for every lane. One of the second is packed by pairs. A tile is 16 such rows, or 16 pairs
// of 16 lanes that lie a panel's width apart.
#include "ops/matmul/panels.h"
#include "ops/onednn.h"

#if defined(__x86_64__)
#include <asm/prctl.h>
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

#define EBB_PANELS __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16,amx-tile,amx-bf16")))
#include "ops/matmul/bfloat16_pairs.h"

#ifndef ARCH_REQ_XCOMP_PERM  // in the headers of Linux 5.16 and later
#define ARCH_REQ_XCOMP_PERM 0x1023
#endif
#endif

namespace ebb {

#if defined(__x86_64__)

namespace {

constexpr int tile_rows = 16, step = 32;  // a row of a tile is 64 bytes
constexpr int largest = 2 * tile_rows;    // rows and columns of sums: 2 × 2 tiles

// What the processor's tiles are configured by: all eight are of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, first_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// The first factor. Neighbours along the inner axis are neighbours in memory: runs are copied.
EBB_PANELS void copy_runs(const PanelSource<BFloat16>& s, int width, BFloat16* to) {
  for (std::int64_t k = 0; k < s.depth; k += step) {
    const __mmask32 present = first32(s.depth - k);
    for (int lane = 0; lane < width; ++lane, to += step)
      _mm512_store_si512(
          to, lane < s.lanes ? _mm512_maskz_loadu_epi16(present, s.from + lane * s.lane_stride + k)
                             : _mm512_setzero_si512());
  }
}

// Neighbouring lanes are neighbours in memory: pairs are made of two runs of lanes and turned, 16
// lanes × 32 numbers at a time.
EBB_PANELS void turn_runs(const PanelSource<BFloat16>& s, int width, BFloat16* to) {
  const Interleave pairs;
  const __mmask32 read = first32(s.lanes);
  for (std::int64_t k = 0; k < s.depth; k += step, to += step * width) {
    __m512i low[16], high[16];
#pragma GCC unroll 16
    for (int p = 0; p < 16; ++p) {
      const __m512i first = run_of_lanes(s, read, k + 2 * p),
                    second = run_of_lanes(s, read, k + 2 * p + 1);
      low[p] = pairs.low(first, second), high[p] = pairs.high(first, second);
    }
    transpose(low);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * step, low[i]);
    if (width == tile_rows) continue;
    transpose(high);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) _mm512_store_si512(to + (tile_rows + i) * step, high[i]);
  }
}

void pack_first(const PanelSource<BFloat16>& source, int width, BFloat16* to) {
  if (along_lanes(source))
    turn_runs(source, width, to);
  else
    copy_runs(source, width, to);
}

// The second factor, by pairs; the rest of the last step is 0.
void pack_second(const PanelSource<BFloat16>& source, int width, BFloat16* to) {
  const auto units = reinterpret_cast<std::uint32_t*>(to);
  if (along_lanes(source))
    PairUnits::pack_along_lanes(source, width, units);
  else
    pack_along_depth<PairUnits>(source, width, units);
  std::uint32_t* end = units + units_of<PairUnits>(source.depth) * width;
  while ((end - units) % (step / 2 * width) != 0) *end++ = 0;
}

EBB_PANELS void begin() {
  static_assert(sizeof(TileConfig) == 64);
  static constexpr TileConfig config;
  _tile_loadconfig(&config);
}
EBB_PANELS void end() { _tile_release(); }

// Where 16 × 16 sums are added up: tiles 0 to 3; tiles 4 and 5 hold the first factor, 6 and 7 the
// second. The numbers of tiles are constants of the instructions.
template <int row_tiles, int column_tiles>
EBB_PANELS void multiply(const PanelProduct<BFloat16>& p) {
  constexpr int rows = row_tiles * tile_rows, columns = column_tiles * tile_rows;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);

  const BFloat16 *a = p.a, *b = p.b;
  for (std::int64_t k = 0; k < p.depth; k += step, a += step * rows, b += step * columns) {
    _tile_loadd(6, b, columns * 4);
    _tile_loadd(4, a, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (column_tiles == 2) {
      _tile_loadd(7, b + 2 * tile_rows, columns * 4);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (row_tiles == 2) {
      _tile_loadd(5, a + step * tile_rows, 64);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (column_tiles == 2) _tile_dpbf16ps(3, 5, 7);
    }
  }

  alignas(64) float edge[rows * columns];  // what does not go to `sums` as it is
  const bool direct = p.rows == rows && p.columns == columns && !p.add && !p.out;
  float* sums = direct ? p.sums : edge;
  const std::int64_t stride = direct ? p.sums_stride : columns;
  _tile_stored(0, sums, stride * 4);
  if constexpr (column_tiles == 2) _tile_stored(1, sums + tile_rows, stride * 4);
  if constexpr (row_tiles == 2) _tile_stored(2, sums + tile_rows * stride, stride * 4);
  if constexpr (row_tiles == 2 && column_tiles == 2)
    _tile_stored(3, sums + tile_rows * stride + tile_rows, stride * 4);
  if (direct) return;
  for (int v = 0; v < columns; v += tile_rows) {
    const __mmask16 present = first16(p.columns - v);
    const auto sum = [&](int r) EBB_PANELS {
      const __m512 x = _mm512_load_ps(edge + r * columns + v);
      return p.add
                 ? _mm512_add_ps(_mm512_maskz_loadu_ps(present, p.sums + r * p.sums_stride + v), x)
                 : x;
    };
    if (!p.out) {
      for (int r = 0; r < p.rows; ++r)
        _mm512_mask_storeu_ps(p.sums + r * p.sums_stride + v, present, sum(r));
      continue;
    }
    __m512 bias = _mm512_setzero_ps();
    if (p.bias)
      bias = _mm512_castsi512_ps(_mm512_slli_epi32(
          _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(present, p.bias + v)), 16));
    for (int r = 0; r < p.rows; ++r) {
      const __m512 x = sum(r);
      _mm256_mask_storeu_epi16(
          p.out + r * p.out_stride + v, present,
          reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(p.bias ? _mm512_add_ps(x, bias) : x)));
    }
  }
}

void multiply_any(const PanelProduct<BFloat16>& product) {
  const bool tall = product.rows > tile_rows, wide = product.columns > tile_rows;
  (tall ? wide ? multiply<2, 2> : multiply<2, 1> : wide ? multiply<1, 2> : multiply<1, 1>)(product);
}

// Whether the processor has tiles and the system lets this process use them, for all its threads.
bool tiles_work() {
  if (std::getenv("ONEDNN_MAX_CPU_ISA") || std::getenv("DNNL_MAX_CPU_ISA")) {
    if (!onednn::has_isa(dnnl::cpu_isa::avx512_core_amx)) return false;
  } else if (!onednn::has_isa(dnnl::cpu_isa::avx512_core_bf16)) {
    return false;
  }
  constexpr unsigned amx_bfloat16 = 1u << 22, amx_tile = 1u << 24, both = amx_bfloat16 | amx_tile;
  constexpr long tile_data = 18;  // the component of a thread's state
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & both) == both &&
         syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, tile_data) == 0;
}

constexpr PanelKernels<BFloat16> tile_kernels = {.rows = largest,
                                                 .rows_step = tile_rows,
                                                 .step = step,
                                                 .depth = 1024,
                                                 .pack_first = pack_first,
                                                 .pack_second = pack_second,
                                                 .multiply = multiply_any,
                                                 .begin = begin,
                                                 .end = end};

}  // namespace

const PanelKernels<BFloat16>* bfloat16_tile_kernels() {
  static const bool works = tiles_work();
  return works ? &tile_kernels : nullptr;
}

#else

const PanelKernels<BFloat16>* bfloat16_tile_kernels() { return nullptr; }

#endif

}  // namespace ebb
