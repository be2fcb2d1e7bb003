#include "ops/matmul/few_rows.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

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
constexpr std::int64_t work_grain = 32768;     // elements of the matrix that are worth a thread
constexpr std::int64_t fetched_ahead = 32768;  // bytes, at least

// A vector of elements as float.
V load_wide(const float* from) { return simd::load(from); }
[[maybe_unused]] V load_wide(const BFloat16* from) {
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

// How numbers are multiplied, and as which x is stored for it. `size` is what a register of the
// matrix holds.
//
// Along lines of the matrix that are summed, a register of it is multiplied by one of x. Lines that
// are added to each other are read `lines` at a time: they become `factors` registers for each of
// `parts` registers of sums, and each is multiplied by `numbers` of x in all lanes.

// By float32 numbers.
template <class T>
struct Floats {
  using Number = float;
  using Register = V;
  static constexpr std::int64_t size = width;
  static constexpr int factors = 8, numbers = 1, parts = 1, lines = factors * numbers;

  static Register load(const T* from) { return load_wide(from); }
  static Register load(const T* from, std::int64_t count) { return load_part(from, count); }
  static Register load_x(const float* from) { return simd::load(from); }
  static Register everywhere(const float* from) { return simd::spread(*from); }
  static V add(const V& sum, const Register& w, const Register& x) { return sum + x * w; }
  template <class Row>
  static void join(const Row& row, Register (&w)[factors][parts]) {
    for (int i = 0; i < factors; ++i) w[i][0] = row(i);
  }
  // Where the sums of a column of `size` are.
  static std::int64_t place(std::int64_t column) { return column; }
};

#ifdef EBB_PAIR_PRODUCTS
// By the processor's products of pairs of bfloat16 numbers.
struct Pairs {
  using Number = BFloat16;
  using Register = __m512bh;
  static constexpr std::int64_t size = 2 * width;
  static constexpr int factors = 4, numbers = 2, parts = 2, lines = factors * numbers;

  static Register load(const BFloat16* from) {
    return reinterpret_cast<Register>(_mm512_loadu_si512(from));
  }
  static Register load(const BFloat16* from, std::int64_t count) {
    return reinterpret_cast<Register>(_mm512_maskz_loadu_epi16((__mmask32{1} << count) - 1, from));
  }
  static Register load_x(const BFloat16* from) { return load(from); }
  static Register everywhere(const BFloat16* from) {
    std::int32_t two;
    std::memcpy(&two, from, sizeof two);
    return reinterpret_cast<Register>(_mm512_set1_epi32(two));
  }
  static V add(const V& sum, const Register& w, const Register& x) {
    return reinterpret_cast<V>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), w, x));
  }
  // Two lines are interleaved, so that a pair belongs to one column. Of every eight columns four
  // come to each register.
  template <class Row>
  static void join(const Row& row, Register (&w)[factors][parts]) {
    for (int i = 0; i < factors; ++i) {
      const __m512i a = reinterpret_cast<__m512i>(row(2 * i)),
                    b = reinterpret_cast<__m512i>(row(2 * i + 1));
      w[i][0] = reinterpret_cast<Register>(_mm512_unpacklo_epi16(a, b));
      w[i][1] = reinterpret_cast<Register>(_mm512_unpackhi_epi16(a, b));
    }
  }
  static std::int64_t place(std::int64_t column) {
    return column / 4 % 2 * width + column / 8 * 4 + column % 4;
  }
};
#endif

template <class T>
struct Multiplying {
  using How = Floats<T>;
};
#ifdef EBB_PAIR_PRODUCTS
template <>
struct Multiplying<BFloat16> {
  using How = Pairs;
};
#endif

template <class How>
struct Factors {
  const typename How::Number* x;  // as `arrange` stores it
  std::int64_t inner;
  float* out;  // rows of `columns` sums
  std::int64_t columns;
};

std::int64_t rounded_up(std::int64_t count, std::int64_t size) {
  return (count + size - 1) / size * size;
}

// x as it is read: `group` numbers of every row, then the next of every row; zeros up to whole
// groups.
template <class T, class Number>
void arrange(const T* x, std::int64_t stride, std::int64_t rows, std::int64_t inner,
             std::int64_t group, Number* to) {
  for (std::int64_t k = 0; k < inner; k += group) {
    const std::int64_t there = std::min(group, inner - k);
    for (std::int64_t m = 0; m < rows; ++m, to += group) {
      const T* from = x + m * stride + k;
      for (std::int64_t i = 0; i < there; ++i) to[i] = static_cast<Number>(from[i]);
      std::fill(to + there, to + group, Number{});
    }
  }
}

// --- The matrix has the inner axis in one piece: line j for column j of the result ---

// Lines at a time with M rows: their sums and a register of each line fill the registers.
#if defined(__AVX512F__)
constexpr int registers = 32;
#else
constexpr int registers = 16;
#endif
template <int M>
constexpr int lines_with = std::clamp(registers / (M + 1), 1, 8);

// M × N scalar products. Lines ahead are fetched in the order in which they lie: a memory gives one
// stream faster than several.
template <class How, int M, int N, class T>
void scalar_products(const Factors<How>& f, const T* matrix, std::int64_t stride,
                     std::int64_t column) {
  constexpr std::int64_t size = How::size;
  V sums[M][N] = {};
  const bool dense = stride == f.inner;
  constexpr std::int64_t ahead = fetched_ahead / static_cast<std::int64_t>(sizeof(T));
  const T *line = matrix + column * stride,
          *next = line + (dense ? std::max(N * stride, ahead) : N * stride);
  const std::int64_t beside = dense ? size : stride, after = dense ? N * size : size;
  const typename How::Number* x = f.x;
  const auto add = [&](std::int64_t k, auto&& load) {
    typename How::Register w[N];
    for (int n = 0; n < N; ++n) {
      w[n] = load(line + n * stride + k);
      __builtin_prefetch(next + n * beside, 0, 2);  // into the second-level cache
    }
    for (int m = 0; m < M; ++m, x += size) {
      const typename How::Register own = How::load_x(x);
      for (int n = 0; n < N; ++n) sums[m][n] = How::add(sums[m][n], w[n], own);
    }
    next += after;
  };
  std::int64_t k = 0;
  for (; k + size <= f.inner; k += size) add(k, [](const T* from) { return How::load(from); });
  if (k < f.inner) add(k, [&](const T* from) { return How::load(from, f.inner - k); });
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) f.out[m * f.columns + column + n] = total(sums[m][n]);
}

template <class How, int M, class T>
void by_scalar_products(const Factors<How>& f, const T* matrix, std::int64_t stride) {
  constexpr int N = lines_with<M>;
  parallel_take((f.columns + N - 1) / N, std::max<std::int64_t>(1, work_grain / (N * f.inner)),
                [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t block = begin; block < end; ++block) {
                    const std::int64_t column = block * N;
                    if (column + N <= f.columns)
                      scalar_products<How, M, N>(f, matrix, stride, column);
                    else
                      for (std::int64_t c = column; c < f.columns; ++c)
                        scalar_products<How, M, 1>(f, matrix, stride, c);
                  }
                });
}

template <class How, class T, std::size_t... M>
void by_scalar_products(const Factors<How>& f, std::int64_t rows, const T* matrix,
                        std::int64_t stride, std::index_sequence<M...>) {
  static constexpr std::array<void (*)(const Factors<How>&, const T*, std::int64_t), sizeof...(M)>
      all{by_scalar_products<How, static_cast<int>(M) + 1, T>...};
  all[static_cast<std::size_t>(rows - 1)](f, matrix, stride);
}

// --- The matrix has the columns of the result in one piece: line k for element k of the inner
// axis ---

// Lines [from_k, to_k), scaled, are added to columns [first, last) of the sums, some lines at a
// time: the sums stay in a cache.
template <class How, class T>
void add_lines(const Factors<How>& f, std::int64_t rows, const T* matrix, std::int64_t stride,
               std::int64_t from_k, std::int64_t to_k, std::int64_t first, std::int64_t last,
               float* sums) {
  using Register = typename How::Register;
  constexpr std::int64_t size = How::size, lines = How::lines;
  const std::int64_t padded = rounded_up(f.columns, size);
  for (std::int64_t m = 0; m < rows; ++m)
    std::fill(sums + m * padded + first, sums + m * padded + rounded_up(last, size), 0.0f);
  for (std::int64_t k = from_k; k < to_k; k += lines) {
    const std::int64_t there = std::min(lines, to_k - k);
    for (std::int64_t c = first; c < last; c += size) {
      const std::int64_t left = last - c;
      const T* from = matrix + k * stride + c;
      Register w[How::factors][How::parts];
      How::join(
          [&](std::int64_t i) {
            if (i >= there) return Register{};
            // Of the next lines, into the second-level cache.
            __builtin_prefetch(from + (i + lines) * stride, 0, 2);
            return left >= size ? How::load(from + i * stride) : How::load(from + i * stride, left);
          },
          w);
      const typename How::Number* x = f.x + k * rows;
      for (std::int64_t m = 0; m < rows; ++m) {
        float* to = sums + m * padded + c;
        V own[How::parts];
        for (int part = 0; part < How::parts; ++part) own[part] = simd::load(to + part * width);
        for (int i = 0; i < How::factors; ++i, x += How::numbers) {
          const Register scale = How::everywhere(x);
          for (int part = 0; part < How::parts; ++part)
            own[part] = How::add(own[part], w[i][part], scale);
        }
        for (int part = 0; part < How::parts; ++part)
          simd::store<float>(to + part * width, own[part]);
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

// `partial` has room for the rows of all pieces.
template <class How, class T>
void by_lines(const Factors<How>& f, std::int64_t rows, std::int64_t pieces, const T* matrix,
              std::int64_t stride, float* partial) {
  constexpr std::int64_t size = How::size;
  const std::int64_t depth = rounded_up((f.inner + pieces - 1) / pieces, How::lines),
                     padded = rounded_up(f.columns, size), whole = padded / size;
  // Columns whose sums stay in a cache for all rows, and enough parts for the threads.
  constexpr std::int64_t cached = 16384;
  const std::int64_t parts = std::clamp<std::int64_t>(
      std::max((f.columns * rows + cached - 1) / cached, (threads() + pieces - 1) / pieces), 1,
      whole);
  const std::int64_t work = std::max<std::int64_t>(1, f.columns * f.inner / (parts * pieces));
  parallel_take(pieces * parts, std::max<std::int64_t>(1, work_grain / work),
                [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t unit = begin; unit < end; ++unit) {
                    const std::int64_t piece = unit / parts, part = unit % parts;
                    add_lines(f, rows, matrix, stride, std::min(piece * depth, f.inner),
                              std::min((piece + 1) * depth, f.inner), whole * part / parts * size,
                              std::min(whole * (part + 1) / parts * size, f.columns),
                              partial + piece * rows * padded);
                  }
                });
  for (std::int64_t m = 0; m < rows; ++m)
    for (std::int64_t c = 0; c < f.columns; ++c) {
      const float* from = partial + m * padded + c / size * size + How::place(c % size);
      float sum = *from;
      for (std::int64_t piece = 1; piece < pieces; ++piece) sum += from[piece * rows * padded];
      f.out[m * f.columns + c] = sum;
    }
}

// Areas of the workspace. They fit every dtype.
struct Areas {
  Bytes x, sums, partial;
  explicit Areas(const MatmulProblem& p)
      : x(room(p.a.rows * rounded_up(p.a.columns, widest))),
        sums(room(p.a.rows * p.b.columns)),
        partial(p.b.transposed()
                    ? Bytes{}
                    : room(pieces_of(p) * p.a.rows * rounded_up(p.b.columns, widest))) {}

 private:
  static constexpr std::int64_t widest = 2 * width;  // of sizes and groups
  static Bytes room(std::int64_t floats) { return round_up({floats * 4}, buffer_alignment); }
};

}  // namespace

bool FewRowsProduct::takes(const MatmulProblem& p, DType dtype) {
  return (dtype == f32 || dtype == f16 || dtype == bf16) && p.batches == 1 && p.a.rows >= 1 &&
         p.a.rows <= most_rows && p.a.column_stride == 1 && p.a.columns >= 1 &&
         (p.b.column_stride == 1 || p.b.row_stride == 1) &&
         p.a.columns * p.b.columns >= least_elements;
}

Bytes FewRowsProduct::workspace() const {
  const Areas areas(p_);
  return areas.x + areas.sums + areas.partial;
}

template <class T>
void FewRowsProduct::run(const T* x, const T* matrix, const T* bias, T* out,
                         std::byte* workspace) const {
  using How = typename Multiplying<T>::How;
  const std::int64_t rows = p_.a.rows, inner = p_.a.columns, columns = p_.b.columns;
  const Areas areas(p_);
  auto* arranged = reinterpret_cast<typename How::Number*>(workspace);
  float *sums = reinterpret_cast<float*>(workspace + areas.x.count),
        *partial = reinterpret_cast<float*>(workspace + (areas.x + areas.sums).count);
  arrange(x, p_.a.row_stride, rows, inner, p_.b.transposed() ? How::size : How::lines, arranged);
  const Factors<How> f{arranged, inner, sums, columns};
  if (p_.b.transposed())
    by_scalar_products(f, rows, matrix, p_.b.column_stride,
                       std::make_index_sequence<static_cast<std::size_t>(most_rows)>());
  else
    by_lines(f, rows, pieces_of(p_), matrix, p_.b.row_stride, partial);
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
