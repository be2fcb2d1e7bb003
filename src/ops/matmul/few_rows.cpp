#include "ops/matmul/few_rows.h"

#include <algorithm>
#include <cstring>

#include "core/machine_half.h"
#include "core/parallel.h"
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

template <int M, class T>
void by_scalar_products(const Factors& f, const T* matrix, std::int64_t stride) {
  constexpr int N = M <= 4 ? 4 : 2;
  parallel_for((f.columns + N - 1) / N, std::max<std::int64_t>(1, work_grain / (N * f.inner)),
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
template <class T>
void add_rows(const Factors& f, std::int64_t rows, const T* matrix, std::int64_t stride,
              std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t block = 512;
  for (std::int64_t first = begin; first < end; first += block) {
    const std::int64_t last = std::min(first + block, end);
    for (std::int64_t m = 0; m < rows; ++m)
      std::fill(f.out + m * f.columns + first, f.out + m * f.columns + last, 0.0f);
    for (std::int64_t k = 0; k < f.inner; k += 4) {
      const int count = static_cast<int>(std::min<std::int64_t>(4, f.inner - k));
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
}

template <class T>
void by_rows(const Factors& f, std::int64_t rows, const T* matrix, std::int64_t stride) {
  // Ranges begin at multiples of a vector.
  parallel_for((f.columns + width - 1) / width,
               std::max<std::int64_t>(1, work_grain / (width * f.inner)),
               [&](std::int64_t begin, std::int64_t end) {
                 add_rows(f, rows, matrix, stride, begin * width, std::min(end * width, f.columns));
               });
}

template <class T>
void multiply(const Factors& f, std::int64_t rows, const MatrixLayout& b, const T* matrix) {
  if (!b.transposed()) return by_rows(f, rows, matrix, b.row_stride);
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

Bytes rows_bytes(const MatmulProblem& p) {
  return round_up({p.a.rows * p.a.columns * 4}, buffer_alignment);
}

}  // namespace

bool FewRowsProduct::takes(const MatmulProblem& p, DType dtype) {
  return (dtype == f32 || dtype == f16 || dtype == bf16) && p.batches == 1 && p.a.rows >= 1 &&
         p.a.rows <= most_rows && p.a.column_stride == 1 && p.a.columns >= 1 &&
         (p.b.column_stride == 1 || p.b.row_stride == 1) &&
         p.a.columns * p.b.columns >= least_elements;
}

Bytes FewRowsProduct::workspace() const {
  return rows_bytes(p_) + round_up({p_.a.rows * p_.b.columns * 4}, buffer_alignment);
}

template <class T>
void FewRowsProduct::run(const T* x, const T* matrix, const T* bias, T* out,
                         std::byte* workspace) const {
  const std::int64_t rows = p_.a.rows, inner = p_.a.columns, columns = p_.b.columns;
  float *wide = reinterpret_cast<float*>(workspace),
        *sums = reinterpret_cast<float*>(workspace + rows_bytes(p_).count);
  for (std::int64_t m = 0; m < rows; ++m)
    widen_all(x + m * p_.a.row_stride, wide + m * inner, inner);
  multiply(Factors{wide, inner, inner, sums, columns}, rows, p_.b, matrix);
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
