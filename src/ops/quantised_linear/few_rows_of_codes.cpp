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

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#define EBB_PAIR_PRODUCTS 1
#endif

namespace ebb {
namespace {

using simd::Floats;
using simd::Ints;
using simd::lanes;

constexpr std::int64_t work_grain = 32768;     // elements of the matrix that are worth a thread
constexpr std::int64_t fetched_ahead = 32768;  // bytes, at least
// Codes are read as a register of 32-bit words, called a chunk. A word has 4 or 8 codes, all of one
// block.
constexpr std::int64_t chunk_bytes = 4 * lanes;
// The number of rows of the matrix and of columns whose scales are computed at a time, and the room
// for scales per row. Blocks have 16 elements or more, and whole vectors of scales are read.
constexpr std::int64_t group = 8, segment = 8192, segment_scales = segment / 16 + lanes;

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

// The first `count` bytes of a register, at least one, and zeros.
template <class Register>
Register first_bytes(const void* from, std::int64_t count) {
#if defined(__AVX512BW__)
  return reinterpret_cast<Register>(_mm512_maskz_loadu_epi8(~__mmask64{0} >> (64 - count), from));
#else
  Register result = {};
  std::memcpy(&result, from, static_cast<std::size_t>(count));
  return result;
#endif
}

// Inlined, so that sums and levels stay in registers.
#define EBB_INLINE inline __attribute__((always_inline))

// How a chunk is converted to numbers: to `registers` registers, one after another, where register
// k comes from the same bits of all words. x has `x_registers` registers for a chunk; number j of
// register k belongs to column j · x_registers + k. The matrix is read at most `most_rows` rows at
// a time, and `rows_with_one` rows with one row of x.

// Codes of 4 bits as float32 numbers.
struct FourBits {
  using Number = float;
  using Register = Floats;
  static constexpr int registers = 8, x_registers = 8, rows_with_one = 4, most_rows = 4;
  static constexpr std::int64_t columns = 8 * lanes;  // of a chunk

  explicit FourBits(LowBits kind) {
    std::copy_n(four_bit_levels(kind).begin(), 16, levels_.values);
  }
  EBB_INLINE Register level(const Ints& words, int k) const {
    return simd::lookup(levels_, words >> (4 * k));
  }
  static constexpr int x_register(int k) { return k; }
  EBB_INLINE static Register load(const float* from) { return simd::load(from); }
  EBB_INLINE static Floats add(const Floats& sum, const Register& w, const Register& x) {
    return sum + w * x;
  }

 private:
  simd::Table16 levels_;
};

// Codes of 8 bits as float32 numbers.
struct EightBits {
  using Number = float;
  using Register = Floats;
  static constexpr int registers = 4, x_registers = 4, rows_with_one = 1, most_rows = 2;
  static constexpr std::int64_t columns = 4 * lanes;

  explicit EightBits(LowBits) {}
  EBB_INLINE Register level(const Ints& words, int k) const {
    constexpr std::int32_t bits = 0x4b000000;  // of 2²³, whose last place is 1
#if defined(__AVX512BW__)
    // Byte k of each word becomes the lowest byte; the other bytes are those of `bits`.
    const __m512i from = _mm512_set4_epi32(12 + k, 8 + k, 4 + k, k);
    const Ints number = reinterpret_cast<Ints>(_mm512_mask_shuffle_epi8(
        _mm512_set1_epi32(bits), 0x1111'1111'1111'1111, reinterpret_cast<__m512i>(words), from));
#else
    const Ints number = ((words >> (8 * k)) & 255) | bits;
#endif
    return simd::floats_of(number) - (0x1p23f + int8_zero);
  }
  static constexpr int x_register(int k) { return k; }
  EBB_INLINE static Register load(const float* from) { return simd::load(from); }
  EBB_INLINE static Floats add(const Floats& sum, const Register& w, const Register& x) {
    return sum + w * x;
  }
};

#ifdef EBB_PAIR_PRODUCTS
// For rows of x in bfloat16, with the processor's products of pairs. Levels are integers that
// bfloat16 holds exactly, so the products are exact.
struct PairProducts {
  using Number = BFloat16;
  using Register = __m512bh;
  static constexpr int registers = 4;

  EBB_INLINE static Register load(const BFloat16* from) {
    return reinterpret_cast<Register>(_mm512_loadu_si512(from));
  }
  EBB_INLINE static Floats add(const Floats& sum, const Register& w, const Register& x) {
    return reinterpret_cast<Floats>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), w, x));
  }

 protected:
  // Shifts words of 16 bits.
  EBB_INLINE static __m512i shifted(const Ints& words, int bits) {
    return _mm512_maskz_srli_epi16(~__mmask32{0}, reinterpret_cast<__m512i>(words),
                                   static_cast<unsigned>(bits));
  }
};

struct FourBitPairs : PairProducts {
  static constexpr int x_registers = 4, rows_with_one = 4, most_rows = 4;
  static constexpr std::int64_t columns = 8 * lanes;

  explicit FourBitPairs(LowBits kind) {
    // The lookup uses five bits: a code and one bit of its neighbour. Both values of that bit give
    // the same level.
    std::array<BFloat16, 32> levels;
    for (std::size_t i = 0; i < 32; ++i) levels[i] = BFloat16(four_bit_levels(kind)[i % 16]);
    levels_ = _mm512_loadu_si512(levels.data());
  }
  EBB_INLINE Register level(const Ints& words, int k) const {
    return reinterpret_cast<Register>(
        _mm512_maskz_permutexvar_epi16(~__mmask32{0}, shifted(words, 4 * k), levels_));
  }
  static constexpr int x_register(int k) { return k; }

 private:
  __m512i levels_;
};

// A level is the sum of two numbers that are made from bits of the code: bits 0 to 6 give 128 and
// more, in steps of 1; bit 7 gives -128 if it is set and -256 otherwise. If the product of x and
// one of these parts overflows, their sum is NaN: such rows are computed by EightBits.
struct EightBitPairs : PairProducts {
  static constexpr int x_registers = 2, rows_with_one = 1, most_rows = 2;
  static constexpr std::int64_t columns = 4 * lanes;

  explicit EightBitPairs(LowBits) {}
  EBB_INLINE Register level(const Ints& words, int k) const {
    constexpr int chosen_or = 0xea, others_or = 0xae;  // (a & b) | c, (~a & b) | c
    const __m512i code = shifted(words, 8 * (k / 2));
    return reinterpret_cast<Register>(
        k % 2 == 0
            ? _mm512_ternarylogic_epi32(code, _mm512_set1_epi16(0x7f), _mm512_set1_epi16(0x4300),
                                        chosen_or)
            : _mm512_ternarylogic_epi32(code, _mm512_set1_epi16(0x80),
                                        _mm512_set1_epi16(static_cast<short>(0xc300)), others_or));
  }
  static constexpr int x_register(int k) { return k / 2; }
};

// The sum of a chunk has 8 products with parts of at most 256, so rows below 2^116 stay far below
// 2^128.
bool overflows_in_parts(const BFloat16* row, std::int64_t columns) {
  constexpr int magnitude = 0x7fff, too_large = (127 + 116) << 7;
  bool found = false;
  for (std::int64_t i = 0; i < columns; ++i) found |= (row[i].bits & magnitude) >= too_large;
  return found;
}
#endif

std::int64_t chunks_in_row(const Encoding& e) {
  return (e.row_bytes() + chunk_bytes - 1) / chunk_bytes;
}

template <class How>
struct Factors {
  PackedMatrix w;
  const typename How::Number* x;  // as `arrange` stores it, `pass` rows at a time
  std::int64_t rows, pass;        // of x
  float* out;                     // rows of w.encoding().rows elements
  How how;
  Ints block_of_lane;
};

template <class How>
constexpr std::int64_t x_size = How::columns / How::x_registers;  // numbers of a register

// The registers of some rows for the first chunk, then those for the next; columns past the last
// are zero.
template <class How, class S>
void arrange(const Encoding& e, const S* x, std::int64_t rows, typename How::Number* to) {
  using Number = typename How::Number;
  for (std::int64_t at = 0; at < e.columns; at += How::columns)
    for (std::int64_t m = 0; m < rows; ++m, to += How::columns) {
      const S* from = x + m * e.columns + at;
      const std::int64_t there = std::min(How::columns, e.columns - at);
      if (there < How::columns) std::fill_n(to, How::columns, Number{});
      for (std::int64_t i = 0; i < there; ++i)
        to[i % How::x_registers * x_size<How> + i / How::x_registers] =
            static_cast<Number>(from[i]);
    }
}

// The number of rows of the matrix processed at a time with M rows of x, so that the sums of a
// chunk and of all chunks stay in registers.
#if defined(__AVX512F__)
constexpr int free_registers = 28;
#else
constexpr int free_registers = 12;
#endif
template <class How, int M>
constexpr int rows_with = static_cast<int>(std::bit_floor(static_cast<unsigned>(
    std::clamp(free_registers / (2 * M + 2), 1, M == 1 ? How::rows_with_one : How::most_rows))));

// The most rows of x in a pass over some rows of the matrix. With more, only one row of the matrix
// would fit.
constexpr std::int64_t most_in_pass = 6;

// Multiplies N rows of the matrix from `row` on with M rows of x from `x_row` on.
template <class How, int M, int N>
class Products {
 public:
  Products(const Factors<How>& f, std::int64_t x_row, std::int64_t row)
      : f_(f), x_row_(x_row), row_(row) {}

  // Columns [first, last). Scales of the rows are `stride` apart.
  EBB_INLINE void add(std::int64_t first, std::int64_t last, const float* scales,
                      std::int64_t stride) {
    const Encoding& e = f_.w.encoding();
    const std::int64_t row_bytes = e.row_bytes();
    const int shift = std::countr_zero(static_cast<std::uint64_t>(e.block));
    const std::uint8_t* codes = f_.w.codes(row_) + first / How::columns * chunk_bytes;
    // Prefetches rows in the order in which they lie, because memory delivers one stream faster
    // than several.
    const std::uint8_t* next = f_.w.codes(row_) + std::max(N * row_bytes, fetched_ahead) +
                               first / How::columns * chunk_bytes * N;
    const typename How::Number* x = f_.x + x_row_ * chunks_in_row(e) * How::columns + first * M;
    Ints words[N];
    Floats own[N];
    std::int64_t at = first;
    for (; at + How::columns <= last; at += How::columns, codes += chunk_bytes) {
      for (int n = 0; n < N; ++n) {
        std::memcpy(&words[n], codes + n * row_bytes, chunk_bytes);
        asm("" : "+v"(words[n]));  // read once: each shift would read them again
        own[n] =
            permuted(simd::load(scales + n * stride + ((at - first) >> shift)), f_.block_of_lane);
        __builtin_prefetch(next, 0, 2);  // into the second-level cache
        next += chunk_bytes;
      }
      add_chunk(words, own, x);
      x += How::columns * M;
    }
    if (at == last) return;
    const std::int64_t there = row_bytes - at / How::columns * chunk_bytes,
                       block = (at - first) >> shift,
                       blocks = ((last - first - 1) >> shift) + 1 - block;
    for (int n = 0; n < N; ++n) {
      words[n] = first_bytes<Ints>(codes + n * row_bytes, there);
      // Zero for lanes past the last column.
      own[n] =
          permuted(first_bytes<Floats>(scales + n * stride + block, 4 * blocks), f_.block_of_lane);
    }
    add_chunk(words, own, x);
  }

  EBB_INLINE void store() const {
    for (int m = 0; m < M; ++m)
      for (int n = 0; n < N; ++n)
        f_.out[(x_row_ + m) * f_.w.encoding().rows + row_ + n] = total(sums_[m][n]);
  }

 private:
  EBB_INLINE void add_chunk(const Ints (&words)[N], const Floats (&scales)[N],
                            const typename How::Number* x) {
    Floats parts[M][N] = {};
#pragma GCC unroll 8
    for (int k = 0; k < How::registers; ++k) {
      typename How::Register w[N];
      for (int n = 0; n < N; ++n) w[n] = f_.how.level(words[n], k);
      for (int m = 0; m < M; ++m) {
        const auto own = How::load(x + m * How::columns + How::x_register(k) * x_size<How>);
        for (int n = 0; n < N; ++n) parts[m][n] = How::add(parts[m][n], w[n], own);
      }
    }
    for (int m = 0; m < M; ++m)
      for (int n = 0; n < N; ++n) sums_[m][n] += parts[m][n] * scales[n];
  }

  const Factors<How>& f_;
  std::int64_t x_row_, row_;
  Floats sums_[M][N] = {};
};

// Rows [row, row + count) of the matrix.
template <class How, int M>
void products(const Factors<How>& f, std::int64_t x_row, std::int64_t row, std::int64_t count) {
  const Encoding& e = f.w.encoding();
  const std::int64_t blocks = e.blocks_in_row();
  const bool together = e.columns <= segment;
  float scales[group * segment_scales];
  if (together) f.w.scales(row, 0, count * blocks, scales);
  const auto some = [&]<int N>(std::integral_constant<int, N>, std::int64_t from) {
    Products<How, M, N> products(f, x_row, row + from);
    for (std::int64_t first = 0; first < e.columns; first += segment) {
      const std::int64_t last = std::min(first + segment, e.columns);
      if (!together)
        for (int n = 0; n < N; ++n)
          f.w.scales(row + from + n, first / e.block, (last - first + e.block - 1) / e.block,
                     scales + n * segment_scales);
      products.add(first, last, together ? scales + from * blocks : scales,
                   together ? blocks : segment_scales);
    }
    products.store();
  };
  constexpr int N = rows_with<How, M>;
  std::int64_t from = 0;
  for (; from + N <= count; from += N) some(std::integral_constant<int, N>{}, from);
  for (; from < count; ++from) some(std::integral_constant<int, 1>{}, from);
}

template <class How, std::size_t... M>
void all_products(const Factors<How>& f, std::index_sequence<M...>) {
  static constexpr std::array<
      void (*)(const Factors<How>&, std::int64_t, std::int64_t, std::int64_t), sizeof...(M)>
      with{products<How, static_cast<int>(M) + 1>...};
  const Encoding& e = f.w.encoding();
  parallel_take(
      (e.rows + group - 1) / group,
      std::max<std::int64_t>(1, work_grain / (group * std::max<std::int64_t>(e.columns, 1))),
      [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = group * begin; row < std::min(group * end, e.rows); row += group)
          for (std::int64_t m = 0; m < f.rows; m += f.pass)
            with[static_cast<std::size_t>(std::min(f.pass, f.rows - m) - 1)](
                f, m, row, std::min(group, e.rows - row));
      });
}

// Calls use(how) with one of the structs above; S is the type of x.
template <class S, class Use>
void with_decoder(LowBits kind, const Use& use) {
#ifdef EBB_PAIR_PRODUCTS
  if constexpr (std::is_same_v<S, BFloat16>) {
    if (kind == LowBits::int8) return use(EightBitPairs(kind));
    if (kind == LowBits::int4) return use(FourBitPairs(kind));
  }
#endif
  if (kind == LowBits::int8) return use(EightBits(kind));
  use(FourBits(kind));
}

}  // namespace

std::int64_t FewRowsOfCodes::most_rows([[maybe_unused]] LowBits kind,
                                       [[maybe_unused]] DType dtype) {
#ifdef EBB_PAIR_PRODUCTS
  if (dtype == bf16 && kind == LowBits::int4) return 128;
  if (dtype == bf16 && kind == LowBits::int8) return 64;
#endif
#if defined(__AVX512F__)
  return 32;
#else
  return 8;
#endif
}

FewRowsOfCodes::FewRowsOfCodes(const Encoding& encoding, std::int64_t rows, DType dtype)
    : e_(encoding), rows_(rows) {
  const std::int64_t chunk = e_.bits() == 8 ? EightBits::columns : FourBits::columns;
  x_at_ = areas_.add<float>(rows * chunks_in_row(e_) * chunk);
  if (is_half(dtype)) out_at_ = areas_.add<float>(rows * e_.rows);  // narrowed from here
}

template <class S>
void FewRowsOfCodes::run(const S* x, const std::uint8_t* packed, S* out,
                         std::byte* workspace) const {
  float* wide = reinterpret_cast<float*>(workspace + out_at_.count);
  if constexpr (std::is_same_v<S, float>) wide = out;
  const auto multiply = [&]<class How>(const How& how, const S* from, std::int64_t rows,
                                       float* to) {
    auto* arranged = reinterpret_cast<typename How::Number*>(workspace + x_at_.count);
    const std::int64_t passes = (rows + most_in_pass - 1) / most_in_pass,
                       pass = (rows + passes - 1) / passes;
    for (std::int64_t m = 0; m < rows; m += pass)
      arrange<How>(e_, from + m * e_.columns, std::min(pass, rows - m),
                   arranged + m * chunks_in_row(e_) * How::columns);
    Ints block_of_lane;
    for (int i = 0; i < lanes; ++i)
      block_of_lane[i] = static_cast<std::int32_t>(How::columns / lanes * i / e_.block);
    all_products(
        Factors<How>{PackedMatrix(e_, packed), arranged, rows, pass, to, how, block_of_lane},
        std::make_index_sequence<static_cast<std::size_t>(most_in_pass)>());
  };
  with_decoder<S>(e_.kind, [&](const auto& how) { multiply(how, x, rows_, wide); });
#ifdef EBB_PAIR_PRODUCTS
  if constexpr (std::is_same_v<S, BFloat16>)
    if (e_.kind == LowBits::int8)
      for (std::int64_t m = 0; m < rows_; ++m)
        if (overflows_in_parts(x + m * e_.columns, e_.columns))
          multiply(EightBits(e_.kind), x + m * e_.columns, 1, wide + m * e_.rows);
#endif
  if constexpr (!std::is_same_v<S, float>) narrow(wide, out, rows_ * e_.rows);
}

template void FewRowsOfCodes::run(const float*, const std::uint8_t*, float*, std::byte*) const;
template void FewRowsOfCodes::run(const MachineHalf*, const std::uint8_t*, MachineHalf*,
                                  std::byte*) const;
template void FewRowsOfCodes::run(const BFloat16*, const std::uint8_t*, BFloat16*,
                                  std::byte*) const;

}  // namespace ebb
