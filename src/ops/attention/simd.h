// Products of small tiles in cache, with the processor's widest vectors.
//
// Every product of attention is written as C (m × n) += A (m × k) · B (k × n) with the elements of
// A broadcast one by one against rows of B. Then A may be part of a tensor in its own layout,
// transposed or not, and only B and C need rows of whole vectors.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>
#include <utility>

namespace ebb::simd {

#if defined(__AVX512F__)
inline constexpr int vector_bytes = 64;
inline constexpr int block_rows = 8;  // of C held in registers, two vectors wide
#elif defined(__AVX__)
inline constexpr int vector_bytes = 32;
inline constexpr int block_rows = 6;
#else
inline constexpr int vector_bytes = 16;
inline constexpr int block_rows = 6;
#endif

template <class C>
struct Simd {
  using Integer = std::conditional_t<sizeof(C) == 4, std::int32_t, std::int64_t>;
  static constexpr int width = vector_bytes / static_cast<int>(sizeof(C));
  typedef C Vector __attribute__((vector_size(vector_bytes)));
  typedef Integer Integers __attribute__((vector_size(vector_bytes)));
};
template <class C>
using Vector = typename Simd<C>::Vector;

// Elements to the next whole vector.
template <class C>
constexpr std::int64_t padded(std::int64_t count) {
  return (count + Simd<C>::width - 1) / Simd<C>::width * Simd<C>::width;
}

template <class C>
inline Vector<C> load(const C* from) {
  Vector<C> v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}
template <class C>
inline void store(C* to, const Vector<C>& v) {
  std::memcpy(to, &v, sizeof(v));
}
template <class C>
inline Vector<C> spread(C value) {
  return value - Vector<C>{};
}

// eˣ for x <= 0 or little above: within 2 units in the last place, and 0 where it would be below
// the least normal number, since subnormal factors slow products down. NaN stays NaN.
inline Vector<float> exp_nonpositive(const Vector<float>& x) {
  using V = Vector<float>;
  using I = Simd<float>::Integers;
  constexpr float least = -87.0f, magic = 0x1.8p23f;  // adding it rounds to an integer
  const V low = spread(least);
  const V clamped = x < low ? low : x;
  const V shifted = clamped * 1.44269504f + magic, n = shifted - magic;
  const V r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
  V p = spread(0.000199096467f);
  for (const float c : {0.00139464461f, 0.00833328068f, 0.0416662619f, 0.166666672f, 0.5f})
    p = p * r + c;
  const V e = (p * r * r + r) + 1.0f;
  // The low bits of `shifted` are n: moved to the exponent's place they make 2ⁿ.
  const I exponent = (std::bit_cast<I>(shifted) << 23) + 0x3f800000;
  return x < low ? V{} : e * std::bit_cast<V>(exponent);
}

inline Vector<double> exp_nonpositive(const Vector<double>& x) {
  Vector<double> result{};
  for (int i = 0; i < Simd<double>::width; ++i) result[i] = std::exp(x[i]);
  return result;
}

// How the elements of A lie: (i, k) at i * stride + k, or at k * stride + i.
enum class Order { rows, columns };

template <class C>
struct Factor {
  const C* data;
  std::int64_t stride;
};

enum class Store { overwrite, add };

template <Order order, int M, int N, class C>
inline void block_product(const C* a, std::int64_t a_stride, std::int64_t depth, const C* b,
                          std::int64_t b_stride, C* c, std::int64_t c_stride, Store how) {
  using V = Vector<C>;
  constexpr int width = Simd<C>::width;
  V sum[M][N] = {};
  if (how == Store::add)
    for (int m = 0; m < M; ++m)
      for (int n = 0; n < N; ++n) sum[m][n] = load(c + m * c_stride + n * width);
  for (std::int64_t k = 0; k < depth; ++k) {
    V row[N];
    for (int n = 0; n < N; ++n) row[n] = load(b + k * b_stride + n * width);
    for (int m = 0; m < M; ++m) {
      const C value = order == Order::rows ? a[m * a_stride + k] : a[k * a_stride + m];
      for (int n = 0; n < N; ++n) sum[m][n] += value * row[n];
    }
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) store(c + m * c_stride + n * width, sum[m][n]);
}

// The last rows, fewer than a block has.
template <Order order, int M, int N, class C>
inline void last_rows(std::int64_t rows, const C* a, std::int64_t a_stride, std::int64_t depth,
                      const C* b, std::int64_t b_stride, C* c, std::int64_t c_stride, Store how) {
  if (rows == M)
    block_product<order, M, N>(a, a_stride, depth, b, b_stride, c, c_stride, how);
  else if constexpr (M > 1)
    last_rows<order, M - 1, N>(rows, a, a_stride, depth, b, b_stride, c, c_stride, how);
}

template <Order order, int N, class C>
void column_product(Factor<C> a, std::int64_t rows, std::int64_t depth, const C* b,
                    std::int64_t b_stride, C* c, std::int64_t c_stride, Store how) {
  const std::int64_t step = order == Order::rows ? a.stride : 1;
  std::int64_t i = 0;
  for (; i + block_rows <= rows; i += block_rows)
    block_product<order, block_rows, N>(a.data + i * step, a.stride, depth, b, b_stride,
                                        c + i * c_stride, c_stride, how);
  if (i < rows)
    last_rows<order, block_rows - 1, N>(rows - i, a.data + i * step, a.stride, depth, b, b_stride,
                                        c + i * c_stride, c_stride, how);
}

// `columns` is a whole number of vectors.
template <Order order, class C>
void product(Factor<C> a, std::int64_t rows, std::int64_t depth, const C* b, std::int64_t b_stride,
             C* c, std::int64_t c_stride, std::int64_t columns, Store how) {
  constexpr int width = Simd<C>::width;
  std::int64_t n = 0;
  for (; n + 2 * width <= columns; n += 2 * width)
    column_product<order, 2>(a, rows, depth, b + n, b_stride, c + n, c_stride, how);
  if (n < columns) column_product<order, 1>(a, rows, depth, b + n, b_stride, c + n, c_stride, how);
}

// a and b, element by element in turn, from element `first` on: as many as a vector has.
template <int first, class V, int... i>
inline V interleaved(const V& a, const V& b, std::integer_sequence<int, i...>) {
  constexpr int width = sizeof...(i);
  return __builtin_shufflevector(a, b, (i % 2 * width + first + i / 2)...);
}

// Swaps rows and columns of one square of `width` elements a side: interleaving the first half of
// the rows with the second, log2(width) times over.
template <class C>
inline void transpose_square(const C* from, std::int64_t from_stride, C* to,
                             std::int64_t to_stride) {
  using V = Vector<C>;
  constexpr int width = Simd<C>::width, half = width / 2;
  constexpr std::make_integer_sequence<int, width> elements;
  V rows[width], mixed[width];
  for (int i = 0; i < width; ++i) rows[i] = load(from + i * from_stride);
  for (int round = 1; round < width; round *= 2) {
    for (int i = 0; i < half; ++i) {
      mixed[2 * i] = interleaved<0>(rows[i], rows[i + half], elements);
      mixed[2 * i + 1] = interleaved<half>(rows[i], rows[i + half], elements);
    }
    for (int i = 0; i < width; ++i) rows[i] = mixed[i];
  }
  for (int i = 0; i < width; ++i) store(to + i * to_stride, rows[i]);
}

// to (columns × rows) = from (rows × columns)ᵀ; both sizes are whole numbers of vectors.
template <class C>
void transpose(const C* from, std::int64_t rows, std::int64_t columns, C* to) {
  constexpr int width = Simd<C>::width;
  for (std::int64_t i = 0; i < rows; i += width)
    for (std::int64_t j = 0; j < columns; j += width)
      transpose_square(from + i * columns + j, columns, to + j * rows + i, rows);
}

}  // namespace ebb::simd
