#include "ops/quantised_linear/few_rows_of_codes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/machine_half.h"
#include "core/parallel_take.h"
#include "ops/pointwise/convert.h"
#include "ops/quantised_linear/code_lanes.h"
#include "ops/quantised_linear/codec.h"

namespace ebb {
namespace {

using simd::Floats;
using simd::Ints;
using simd::lanes;

constexpr std::int64_t work_grain = 32768;  // elements of the matrix that are worth a thread
// Columns whose scales are made at a time, and the room they take in each row: blocks have 16
// elements or more, and whole vectors of scales are read.
constexpr std::int64_t segment = 8192, segment_scales = segment / 16 + lanes;

// Codes of 4 bits are taken from a register of 32-bit words, eight to a word: the k-th of all words
// by a shift. So x is stored with the elements 8 · lane + k of a chunk next to each other.
constexpr std::int64_t chunk4 = 8 * lanes;

std::int64_t chunk_of(const Encoding& e) { return e.bits() == 8 ? lanes : chunk4; }
std::int64_t padded_columns(const Encoding& e) {
  const std::int64_t chunk = chunk_of(e);
  return (e.columns + chunk - 1) / chunk * chunk;
}

Floats permuted(const Floats& x, const Ints& index) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_maskz_permutexvar_ps(
      simd::every, reinterpret_cast<__m512i>(index), reinterpret_cast<__m512>(x)));
#elif defined(__AVX2__)
  return reinterpret_cast<Floats>(
      _mm256_permutevar8x32_ps(reinterpret_cast<__m256>(x), reinterpret_cast<__m256i>(index)));
#else
  Floats y;
  for (int i = 0; i < lanes; ++i) y[i] = x[index[i]];
  return y;
#endif
}

// The sum of all lanes, by halves.
float total(const Floats& v) {
  typedef float Four __attribute__((vector_size(16)));
  Four fours[lanes / 4];
  std::memcpy(fours, &v, sizeof v);
  for (int half = lanes / 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) fours[i] += fours[i + half];
  return (fours[0][0] + fours[0][2]) + (fours[0][1] + fours[0][3]);
}

struct Factors {
  PackedMatrix w;
  const float* x;  // prepared rows, `stride` apart
  std::int64_t stride;
  float* out;  // rows of w.encoding().rows elements
};

// The sums of M rows of x with a row of the matrix. They are to stay in registers, so whatever
// takes them is inlined.
template <int M>
using Sums = Floats[M];
#define EBB_INLINE inline __attribute__((always_inline))

template <int M>
EBB_INLINE void add_scaled(Sums<M>& sums, const Sums<M>& parts, const Floats& scale) {
  for (int m = 0; m < M; ++m) sums[m] += parts[m] * scale;
}

// `size` bytes, of which only `count` are there: a copy with zeros behind them.
void fill_up(const std::uint8_t* from, std::int64_t count, std::int64_t size, std::uint8_t* copy) {
  std::memcpy(copy, from, static_cast<std::size_t>(count));
  std::memset(copy + count, 0, static_cast<std::size_t>(size - count));
}

// One vector of each row of x with codes of 8 bits.
template <int M>
EBB_INLINE void add_bytes(const Factors& f, const std::uint8_t* codes, std::int64_t at,
                          Sums<M>& parts) {
  const Floats w = simd::to_floats(simd::load_bytes(codes) - int8_zero);
  for (int m = 0; m < M; ++m) parts[m] += w * simd::load(f.x + m * f.stride + at);
}

template <int M>
EBB_INLINE void add_byte_blocks(const Factors& f, std::int64_t row, std::int64_t first,
                                std::int64_t last, const float* scales, Sums<M>& sums) {
  const Encoding& e = f.w.encoding();
  const std::uint8_t* codes = f.w.codes(row);
  for (std::int64_t at = first; at < last; at += e.block) {
    const std::int64_t end = std::min(at + e.block, last);
    Sums<M> parts = {};
    std::int64_t i = at;
    for (; i + lanes <= end; i += lanes) add_bytes<M>(f, codes + i, i, parts);
    if (i < end) {
      std::uint8_t copy[lanes];
      fill_up(codes + i, end - i, lanes, copy);
      add_bytes<M>(f, copy, i, parts);
    }
    add_scaled<M>(sums, parts, simd::all(*scales++));
  }
}

// One chunk with codes of 4 bits, whose words have been read.
template <int M>
EBB_INLINE void add_words(const Factors& f, const Ints& words, std::int64_t at, const float* scales,
                          const simd::Table16& levels, const Ints& block_of_lane, Sums<M>& sums) {
  Sums<M> parts = {};
  for (int k = 0; k < 8; ++k) {
    const Floats w = simd::lookup(levels, words >> (4 * k));
    for (int m = 0; m < M; ++m) parts[m] += w * simd::load(f.x + m * f.stride + at + k * lanes);
  }
  add_scaled<M>(sums, parts, permuted(simd::load(scales), block_of_lane));
}

template <int M>
EBB_INLINE void add_word_chunks(const Factors& f, std::int64_t row, std::int64_t first,
                                std::int64_t last, const float* scales, const simd::Table16& levels,
                                const Ints& block_of_lane, Sums<M>& sums) {
  const Encoding& e = f.w.encoding();
  constexpr std::int64_t bytes = chunk4 / 2;
  const std::uint8_t* codes = f.w.codes(row);
  const int shift = std::countr_zero(static_cast<std::uint64_t>(e.block));
  Ints words;
  std::int64_t at = first;
  for (; at + chunk4 <= last; at += chunk4) {
    std::memcpy(&words, codes + at / 2, bytes);
    add_words<M>(f, words, at, scales + ((at - first) >> shift), levels, block_of_lane, sums);
  }
  if (at == last) return;
  float last_scales[lanes] = {};  // zero for lanes behind the last column
  std::copy(scales + ((at - first) >> shift), scales + ((last - first - 1) >> shift) + 1,
            last_scales);
  std::uint8_t copy[bytes];
  fill_up(codes + at / 2, (last + 1) / 2 - at / 2, bytes, copy);
  std::memcpy(&words, copy, bytes);
  add_words<M>(f, words, at, last_scales, levels, block_of_lane, sums);
}

// Rows of the matrix whose scales are made at a time.
constexpr std::int64_t group = 4;

// Rows [row, row + count) of the matrix, one after the other: a memory gives one stream faster than
// several.
template <int M>
void products(const Factors& f, const simd::Table16& levels, const Ints& block_of_lane,
              std::int64_t row, std::int64_t count) {
  const Encoding& e = f.w.encoding();
  const std::int64_t blocks = e.blocks_in_row();
  const bool together = e.columns <= segment;
  float scales[group * segment_scales];
  if (together) f.w.scales(row, 0, count * blocks, scales);
  for (std::int64_t n = 0; n < count; ++n) {
    Sums<M> sums = {};
    for (std::int64_t first = 0; first < e.columns; first += segment) {
      const std::int64_t last = std::min(first + segment, e.columns);
      if (!together)
        f.w.scales(row + n, first / e.block, (last - first + e.block - 1) / e.block, scales);
      const float* own = together ? scales + n * blocks : scales;
      if (e.bits() == 8)
        add_byte_blocks<M>(f, row + n, first, last, own, sums);
      else
        add_word_chunks<M>(f, row + n, first, last, own, levels, block_of_lane, sums);
    }
    for (int m = 0; m < M; ++m) f.out[m * e.rows + row + n] = total(sums[m]);
  }
}

template <int M>
void all_products(const Factors& f) {
  const Encoding& e = f.w.encoding();
  simd::Table16 levels;
  std::copy_n(four_bit_levels(e.kind).begin(), 16, levels.values);
  Ints block_of_lane;
  for (int i = 0; i < lanes; ++i) block_of_lane[i] = static_cast<std::int32_t>(8 * i / e.block);
  parallel_take(
      (e.rows + group - 1) / group,
      std::max<std::int64_t>(1, work_grain / (group * std::max<std::int64_t>(e.columns, 1))),
      [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = group * begin; row < std::min(group * end, e.rows); row += group)
          products<M>(f, levels, block_of_lane, row, std::min(group, e.rows - row));
      });
}

template <std::size_t... M>
void for_rows(const Factors& f, std::int64_t rows, std::index_sequence<M...>) {
  static constexpr std::array<void (*)(const Factors&), sizeof...(M)> all{
      all_products<static_cast<int>(M) + 1>...};
  all[static_cast<std::size_t>(rows - 1)](f);
}

// In the order in which codes are read, and zeros up to a whole chunk.
void prepare(const Encoding& e, float* row, const float* from) {
  const std::int64_t padded = padded_columns(e);
  if (e.bits() == 8) {
    std::copy_n(from, e.columns, row);
    std::fill(row + e.columns, row + padded, 0.0f);
    return;
  }
  for (std::int64_t at = 0; at < padded; at += chunk4) {
    float last[chunk4] = {};
    const float* chunk = from + at;
    if (at + chunk4 > e.columns) {
      std::copy_n(chunk, e.columns - at, last);
      chunk = last;
    }
    for (std::int64_t k = 0; k < 8; ++k)
      for (std::int64_t lane = 0; lane < lanes; ++lane)
        row[at + k * lanes + lane] = chunk[8 * lane + k];
  }
}

}  // namespace

FewRowsOfCodes::FewRowsOfCodes(const Encoding& encoding, std::int64_t rows, DType dtype)
    : e_(encoding), rows_(rows) {
  x_at_ = areas_.add<float>(rows * padded_columns(e_));
  // Rows of half types are widened here first, and the result is narrowed from here.
  if (is_half(dtype)) out_at_ = areas_.add<float>(std::max(rows * e_.rows, e_.columns));
}

template <class S>
void FewRowsOfCodes::run(const S* x, const std::uint8_t* packed, S* out,
                         std::byte* workspace) const {
  float* prepared = reinterpret_cast<float*>(workspace + x_at_.count);
  float* wide = reinterpret_cast<float*>(workspace + out_at_.count);
  const std::int64_t stride = padded_columns(e_);
  for (std::int64_t m = 0; m < rows_; ++m) {
    const float* row = wide;
    if constexpr (std::is_same_v<S, float>)
      row = x + m * e_.columns;
    else
      widen(x + m * e_.columns, wide, e_.columns);
    prepare(e_, prepared + m * stride, row);
  }
  float* to = wide;
  if constexpr (std::is_same_v<S, float>) to = out;
  for_rows(Factors{PackedMatrix(e_, packed), prepared, stride, to}, rows_,
           std::make_index_sequence<static_cast<std::size_t>(most_rows)>());
  if constexpr (!std::is_same_v<S, float>) narrow(wide, out, rows_ * e_.rows);
}

template void FewRowsOfCodes::run(const float*, const std::uint8_t*, float*, std::byte*) const;
template void FewRowsOfCodes::run(const MachineHalf*, const std::uint8_t*, MachineHalf*,
                                  std::byte*) const;
template void FewRowsOfCodes::run(const BFloat16*, const std::uint8_t*, BFloat16*,
                                  std::byte*) const;

}  // namespace ebb
