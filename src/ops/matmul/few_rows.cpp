#include "ops/matmul/few_rows.h"

#include <algorithm>
#include <cstring>

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#include <immintrin.h>
#define EBB_PAIR_PRODUCTS 1
#endif

#include "core/machine_half.h"
#include "core/parallel_take.h"
#include "ebb/storage.h"
#include "ops/attention/simd.h"
#include "ops/pointwise/convert.h"

namespace ebb {
namespace {

using V = simd::Vector<float>;
constexpr std::int64_t width = simd::Simd<float>::width;
constexpr std::int64_t work_grain = 32768;  // elements of the matrix that are worth a thread

// A vector of elements as float.
V load_wide(const float* from) { return simd::load(from); }
V load_wide(const BFloat16* from) {
  typedef std::uint16_t Narrow __attribute__((vector_size(width * 2)));
  typedef std::uint32_t Wide __attribute__((vector_size(width * 4)));
  Narrow bits;
  std::memcpy(&bits, from, sizeof(bits));
  return std::bit_cast<V>(__builtin_convertvector(bits, Wide) << 16);
}
V load_wide(const MachineHalf* from) {
#if defined(__AVX512F__)
  // With a mask: the plain intrinsic starts from an undefined vector, which the compiler warns of.
  return std::bit_cast<V>(
      _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif defined(__AVX__) && defined(__F16C__)
  return std::bit_cast<V>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
  V wide = {};
  for (std::int64_t i = 0; i < width; ++i) wide[i] = static_cast<float>(from[i]);
  return wide;
#endif
}
// The first `count` elements, and zeros.
template <class T>
V load_part(const T* from, std::int64_t count) {
  T parts[width] = {};
  std::copy_n(from, count, parts);
  return load_wide(parts);
}

// The sum of a vector's elements, by halves.
float total(const V& v) {
  typedef float Four __attribute__((vector_size(16)));
  Four fours[width / 4];
  std::memcpy(fours, &v, sizeof(v));
  for (std::int64_t half = width / 8; half > 0; half /= 2)
    for (std::int64_t i = 0; i < half; ++i) fours[i] += fours[i + half];
  return (fours[0][0] + fours[0][2]) + (fours[0][1] + fours[0][3]);
}

struct Factors {
  const float* x;  // rows of `inner` elements, `x_stride` apart
  std::int64_t x_stride, inner;
  float* out;  // rows of `columns` elements
  std::int64_t columns;
};

// The matrix has the inner axis in one piece, row j for column j of the result: M × N scalar
// products at a time.
template <int M, int N, class T>
void scalar_products(const Factors& f, const T* matrix, std::int64_t stride, std::int64_t column) {
  V sums[M][N] = {};
  const T* lines[N];
  for (int n = 0; n < N; ++n) lines[n] = matrix + (column + n) * stride;
  const auto add = [&](std::int64_t k, auto&& load) {
    V w[N];
    for (int n = 0; n < N; ++n) {
      w[n] = load(lines[n] + k);
      __builtin_prefetch(lines[n] + N * stride + k);  // of the next columns
    }
    for (int m = 0; m < M; ++m) {
      const V x = load(f.x + m * f.x_stride + k);
      for (int n = 0; n < N; ++n) sums[m][n] += x * w[n];
    }
  };
  std::int64_t k = 0;
  for (; k + width <= f.inner; k += width) add(k, [](auto* from) { return load_wide(from); });
  if (k < f.inner) add(k, [&](auto* from) { return load_part(from, f.inner - k); });
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) f.out[m * f.columns + column + n] = total(sums[m][n]);
}

#ifdef EBB_PAIR_PRODUCTS
// The same for rows of x in bfloat16, by the processor's products of pairs.
struct HalfFactors {
  const BFloat16* x;
  std::int64_t x_stride, inner;
  float* out;
  std::int64_t columns;
};

// One column of the result after the other: a memory gives one stream faster than several. Every
// second register has sums of its own, so that they need not wait for each other.
template <int M>
void pair_products(const HalfFactors& f, const BFloat16* line, std::int64_t column) {
  constexpr std::int64_t pairs = 2 * width;
  __m512 sums[2][M];
  for (int m = 0; m < M; ++m) sums[0][m] = sums[1][m] = _mm512_setzero_ps();
  const auto add = [&](int which, std::int64_t k, auto&& load) {
    const __m512bh w = load(line + k);
    for (int m = 0; m < M; ++m)
      sums[which][m] = _mm512_dpbf16_ps(sums[which][m], w, load(f.x + m * f.x_stride + k));
  };
  const auto whole = [](const BFloat16* from) {
    return reinterpret_cast<__m512bh>(_mm512_loadu_si512(from));
  };
  std::int64_t k = 0;
  for (; k + 2 * pairs <= f.inner; k += 2 * pairs) add(0, k, whole), add(1, k + pairs, whole);
  if (k + pairs <= f.inner) add(0, k, whole), k += pairs;
  if (k < f.inner) {
    const __mmask32 there = (__mmask32{1} << (f.inner - k)) - 1;
    add(1, k, [&](const BFloat16* from) {
      return reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(there, from));
    });
  }
  for (int m = 0; m < M; ++m)
    f.out[m * f.columns + column] = total(reinterpret_cast<V>(sums[0][m] + sums[1][m]));
}

template <int M>
void by_pair_products(const HalfFactors& f, const BFloat16* matrix, std::int64_t stride) {
  parallel_take(f.columns, std::max<std::int64_t>(1, work_grain / f.inner),
                [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t column = begin; column < end; ++column)
                    pair_products<M>(f, matrix + column * stride, column);
                });
}

void multiply_pairs(const HalfFactors& f, std::int64_t rows, const BFloat16* matrix,
                    std::int64_t stride) {
  static constexpr void (*all[])(const HalfFactors&, const BFloat16*, std::int64_t) = {
      by_pair_products<1>, by_pair_products<2>, by_pair_products<3>, by_pair_products<4>,
      by_pair_products<5>, by_pair_products<6>, by_pair_products<7>, by_pair_products<8>};
  all[rows - 1](f, matrix, stride);
}
#endif

template <int M, class T>
void by_scalar_products(const Factors& f, const T* matrix, std::int64_t stride) {
  constexpr int N = M <= 4 ? 4 : 2;
  parallel_take((f.columns + N - 1) / N, std::max<std::int64_t>(1, work_grain / (N * f.inner)),
                [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t block = begin; block < end; ++block) {
                    const std::int64_t column = block * N;
                    if (column + N <= f.columns)
                      scalar_products<M, N>(f, matrix, stride, column);
                    else
                      for (std::int64_t c = column; c < f.columns; ++c)
                        scalar_products<M, 1>(f, matrix, stride, c);
                  }
                });
}

// The matrix has the columns of the result in one piece, row k for element k of the inner axis:
// four of its rows at a time, scaled, are added to the rows of the result, which stay in a cache.
// Rows [from_k, to_k) and columns [first, last).
template <class T>
void add_rows(const Factors& f, std::int64_t rows, const T* matrix, std::int64_t stride,
              std::int64_t from_k, std::int64_t to_k, std::int64_t first, std::int64_t last) {
  for (std::int64_t m = 0; m < rows; ++m)
    std::fill(f.out + m * f.columns + first, f.out + m * f.columns + last, 0.0f);
  for (std::int64_t k = from_k; k < to_k; k += 4) {
    const int count = static_cast<int>(std::min<std::int64_t>(4, to_k - k));
    for (std::int64_t c = first; c < last; c += width) {
      const std::int64_t left = last - c;
      V w[4] = {};
      for (int i = 0; i < count; ++i) {
        const T* from = matrix + (k + i) * stride + c;
        w[i] = left >= width ? load_wide(from) : load_part(from, left);
        __builtin_prefetch(from + 8 * stride);  // of the rows after the next four
      }
      for (std::int64_t m = 0; m < rows; ++m) {
        float* to = f.out + m * f.columns + c;
        const float* x = f.x + m * f.x_stride + k;
        V sum = left >= width ? simd::load(to) : load_part(to, left);
        for (int i = 0; i < count; ++i) sum += x[i] * w[i];
        if (left >= width)
          simd::store<float>(to, sum);
        else
          std::memcpy(to, &sum, static_cast<std::size_t>(left) * sizeof(float));
      }
    }
  }
}

// The inner axis is cut into pieces that are summed on their own and then added in order, so that
// each thread reads a part of the matrix that lies in one piece. Their number depends on the inner
// size alone.
std::int64_t pieces_of(const MatmulProblem& p) {
  return p.b.transposed() ? 1 : std::clamp<std::int64_t>(p.a.columns / 128, 1, 4);
}

template <class T>
void by_rows(const Factors& f, std::int64_t rows, std::int64_t pieces, const T* matrix,
             std::int64_t stride) {
  const std::int64_t depth = ((f.inner + pieces - 1) / pieces + 3) / 4 * 4,
                     whole = (f.columns + width - 1) / width;  // vectors
  // Columns that stay in the first-level cache for all rows, and enough parts for the threads.
  const std::int64_t parts = std::clamp<std::int64_t>(
      std::max(f.columns * rows / 4096 + 1, (threads() + pieces - 1) / pieces), 1, whole);
  const std::int64_t work = std::max<std::int64_t>(1, f.columns * f.inner / (parts * pieces));
  parallel_take(pieces * parts, std::max<std::int64_t>(1, work_grain / work),
                [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t unit = begin; unit < end; ++unit) {
                    const std::int64_t piece = unit / parts, part = unit % parts;
                    Factors own = f;
                    own.out += piece * rows * f.columns;
                    add_rows(own, rows, matrix, stride, std::min(piece * depth, f.inner),
                             std::min((piece + 1) * depth, f.inner), whole * part / parts * width,
                             std::min(whole * (part + 1) / parts * width, f.columns));
                  }
                });
  for (std::int64_t piece = 1; piece < pieces; ++piece) {
    const float* from = f.out + piece * rows * f.columns;
    for (std::int64_t i = 0; i < rows * f.columns; ++i) f.out[i] += from[i];
  }
}

#ifdef EBB_PAIR_PRODUCTS
// The same in bfloat16. Rows k and k + 1 of the matrix are interleaved, so that a pair of numbers
// belongs to one column; eight rows are added at a time. Of 32 columns those that interleaving puts
// into the first register come first in `out`.
constexpr std::int64_t pair_columns = 32;
std::int64_t padded_columns(std::int64_t columns) {
  return (columns + pair_columns - 1) / pair_columns * pair_columns;
}

void add_pairs(const HalfFactors& f, std::int64_t rows, const BFloat16* matrix, std::int64_t stride,
               std::int64_t from_k, std::int64_t to_k, std::int64_t first, std::int64_t last,
               float* out) {
  const std::int64_t padded = padded_columns(f.columns);
  for (std::int64_t m = 0; m < rows; ++m)
    std::fill(out + m * padded + first, out + m * padded + padded_columns(last), 0.0f);
  for (std::int64_t k = from_k; k < to_k; k += 8) {
    const std::int64_t there = std::min<std::int64_t>(8, to_k - k);
    BFloat16 x[FewRowsProduct::most_rows][8] = {};
    for (std::int64_t m = 0; m < rows; ++m) std::copy_n(f.x + m * f.x_stride + k, there, x[m]);
    for (std::int64_t c = first; c < last; c += pair_columns) {
      const std::int64_t left = last - c;
      const __mmask32 mask = left >= pair_columns ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
      const BFloat16* from = matrix + k * stride + c;
      const auto row = [&](std::int64_t i) {
        if (i >= there) return _mm512_setzero_si512();
        __builtin_prefetch(from + (i + 8) * stride);  // of the next rows
        return _mm512_maskz_loadu_epi16(mask, from + i * stride);
      };
      __m512bh low[4], high[4];
      for (int i = 0; i < 4; ++i) {
        const __m512i a = row(2 * i), b = row(2 * i + 1);
        low[i] = reinterpret_cast<__m512bh>(_mm512_unpacklo_epi16(a, b));
        high[i] = reinterpret_cast<__m512bh>(_mm512_unpackhi_epi16(a, b));
      }
      for (std::int64_t m = 0; m < rows; ++m) {
        float* to = out + m * padded + c;
        __m512 first_sums = _mm512_loadu_ps(to), second_sums = _mm512_loadu_ps(to + width);
        for (int i = 0; i < 4; ++i) {
          std::int32_t two;
          std::memcpy(&two, x[m] + 2 * i, sizeof two);
          const __m512bh both = reinterpret_cast<__m512bh>(_mm512_set1_epi32(two));
          first_sums = _mm512_dpbf16_ps(first_sums, low[i], both);
          second_sums = _mm512_dpbf16_ps(second_sums, high[i], both);
        }
        _mm512_storeu_ps(to, first_sums);
        _mm512_storeu_ps(to + width, second_sums);
      }
    }
  }
}

// `partial` has room for the rows of all pieces.
void by_pairs(const HalfFactors& f, std::int64_t rows, std::int64_t pieces, const BFloat16* matrix,
              std::int64_t stride, float* partial) {
  const std::int64_t depth = ((f.inner + pieces - 1) / pieces + 7) / 8 * 8,
                     padded = padded_columns(f.columns), whole = padded / pair_columns;
  const std::int64_t parts = std::clamp<std::int64_t>(
      std::max(f.columns * rows / 4096 + 1, (threads() + pieces - 1) / pieces), 1, whole);
  const std::int64_t work = std::max<std::int64_t>(1, f.columns * f.inner / (parts * pieces));
  parallel_take(pieces * parts, std::max<std::int64_t>(1, work_grain / work),
                [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t unit = begin; unit < end; ++unit) {
                    const std::int64_t piece = unit / parts, part = unit % parts;
                    add_pairs(f, rows, matrix, stride, std::min(piece * depth, f.inner),
                              std::min((piece + 1) * depth, f.inner),
                              whole * part / parts * pair_columns,
                              std::min(whole * (part + 1) / parts * pair_columns, f.columns),
                              partial + piece * rows * padded);
                  }
                });
  for (std::int64_t m = 0; m < rows; ++m)
    for (std::int64_t c = 0; c < f.columns; ++c) {
      // Interleaving takes four columns of every eight into each register.
      const std::int64_t in = c % pair_columns,
                         place = c - in + in / 4 % 2 * width + in / 8 * 4 + in % 4;
      float sum = partial[m * padded + place];
      for (std::int64_t piece = 1; piece < pieces; ++piece)
        sum += partial[(piece * rows + m) * padded + place];
      f.out[m * f.columns + c] = sum;
    }
}
#endif

template <class T>
void multiply(const Factors& f, std::int64_t rows, const MatmulProblem& p, const T* matrix) {
  const MatrixLayout& b = p.b;
  if (!b.transposed()) return by_rows(f, rows, pieces_of(p), matrix, b.row_stride);
  switch (rows) {
    case 1:
      return by_scalar_products<1>(f, matrix, b.column_stride);
    case 2:
      return by_scalar_products<2>(f, matrix, b.column_stride);
    case 3:
      return by_scalar_products<3>(f, matrix, b.column_stride);
    case 4:
      return by_scalar_products<4>(f, matrix, b.column_stride);
    case 5:
      return by_scalar_products<5>(f, matrix, b.column_stride);
    case 6:
      return by_scalar_products<6>(f, matrix, b.column_stride);
    case 7:
      return by_scalar_products<7>(f, matrix, b.column_stride);
    default:
      return by_scalar_products<8>(f, matrix, b.column_stride);
  }
}

template <class T>
void widen_all(const T* from, float* to, std::int64_t count) {
  if constexpr (std::is_same_v<T, float>)
    std::copy_n(from, count, to);
  else
    widen(from, to, count);
}

// Where the processor has products of pairs for this type: computes all of it. `partial` has
// `partial_bytes`.
template <class T>
bool products_of_pairs(const MatmulProblem&, const T*, const T*, float*, float*) {
  return false;
}
Bytes partial_bytes([[maybe_unused]] const MatmulProblem& p) {
#ifdef EBB_PAIR_PRODUCTS
  if (!p.b.transposed())
    return round_up({pieces_of(p) * p.a.rows * padded_columns(p.b.columns) * 4}, buffer_alignment);
#endif
  return {};
}
#ifdef EBB_PAIR_PRODUCTS
template <>
bool products_of_pairs(const MatmulProblem& p, const BFloat16* x, const BFloat16* matrix,
                       float* sums, float* partial) {
  const HalfFactors f{x, p.a.row_stride, p.a.columns, sums, p.b.columns};
  if (p.b.transposed())
    multiply_pairs(f, p.a.rows, matrix, p.b.column_stride);
  else
    by_pairs(f, p.a.rows, pieces_of(p), matrix, p.b.row_stride, partial);
  return true;
}
#endif

Bytes rows_bytes(const MatmulProblem& p) {
  return round_up({p.a.rows * p.a.columns * 4}, buffer_alignment);
}
Bytes sums_bytes(const MatmulProblem& p) {
  return round_up({pieces_of(p) * p.a.rows * p.b.columns * 4}, buffer_alignment);
}

}  // namespace

bool FewRowsProduct::takes(const MatmulProblem& p, DType dtype) {
  return (dtype == f32 || dtype == f16 || dtype == bf16) && p.batches == 1 && p.a.rows >= 1 &&
         p.a.rows <= most_rows && p.a.column_stride == 1 && p.a.columns >= 1 &&
         (p.b.column_stride == 1 || p.b.row_stride == 1) &&
         p.a.columns * p.b.columns >= least_elements;
}

Bytes FewRowsProduct::workspace() const {
  return rows_bytes(p_) + sums_bytes(p_) + partial_bytes(p_);
}

template <class T>
void FewRowsProduct::run(const T* x, const T* matrix, const T* bias, T* out,
                         std::byte* workspace) const {
  const std::int64_t rows = p_.a.rows, inner = p_.a.columns, columns = p_.b.columns;
  float *wide = reinterpret_cast<float*>(workspace),
        *sums = reinterpret_cast<float*>(workspace + rows_bytes(p_).count);
  float* partial = sums + sums_bytes(p_).count / 4;
  if (!products_of_pairs(p_, x, matrix, sums, partial)) {
    for (std::int64_t m = 0; m < rows; ++m)
      widen_all(x + m * p_.a.row_stride, wide + m * inner, inner);
    multiply(Factors{wide, inner, inner, sums, columns}, rows, p_, matrix);
  }
  for (std::int64_t m = 0; m < rows; ++m) {
    float* from = sums + m * columns;
    if (bias)
      for (std::int64_t c = 0; c < columns; ++c) from[c] += static_cast<float>(bias[c]);
    if constexpr (std::is_same_v<T, float>)
      std::copy_n(from, columns, out + m * columns);
    else
      narrow(from, out + m * columns, columns);
  }
}

template void FewRowsProduct::run(const float*, const float*, const float*, float*,
                                  std::byte*) const;
template void FewRowsProduct::run(const MachineHalf*, const MachineHalf*, const MachineHalf*,
                                  MachineHalf*, std::byte*) const;
template void FewRowsProduct::run(const BFloat16*, const BFloat16*, const BFloat16*, BFloat16*,
                                  std::byte*) const;

}  // namespace ebb
