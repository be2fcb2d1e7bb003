// Reductions on a GPU over elements from memory or from a program that computes them. nvcc compiles
// this file for the former, NVRTC compiles its text (fold_text.h) for the latter, and both reduce
// in the same order. So it uses only integer types of the standard library and states every fused
// multiply-add explicitly.
//
// A source gives the elements a thread asks for, `width` neighbours at a time:
//
//   typedef ... Value;                        what elements are computed in
//   static constexpr int width;
//   static constexpr int rows_in_flight;      slots that are fetched before the first is used:
//   static constexpr int columns_in_flight;   along rows, and down columns, where it divides 8
//   typedef ... Slot;
//   Slot fetch(std::int64_t at) const;        from memory
//   void values(const Slot&, Value (&)[width]) const;
//
// An output has write(results, slice, result, value).
#pragma once

#include "ops/cuda/group.cuh"
#include "ops/cuda/strided.cuh"

namespace ebb::cuda::fold {

template <bool first, class A, class B>
struct Either {
  typedef A type;
};
template <class A, class B>
struct Either<false, A, B> {
  typedef B type;
};

// The identities of extremes.
template <class T>
struct Limits;
template <>
struct Limits<double> {
  __device__ static double highest() { return __longlong_as_double(0x7ff0000000000000ll); }
  __device__ static double lowest() { return -highest(); }
};
template <>
struct Limits<float> {
  __device__ static float highest() { return __int_as_float(0x7f800000); }
  __device__ static float lowest() { return -highest(); }
};
template <>
struct Limits<long long> {
  __device__ static long long highest() { return 0x7fffffffffffffffll; }
  __device__ static long long lowest() { return -highest() - 1; }
};
template <>
struct Limits<long> {
  __device__ static long highest() { return 0x7fffffffffffffffl; }
  __device__ static long lowest() { return -highest() - 1; }
};
template <>
struct Limits<int> {
  __device__ static int highest() { return 0x7fffffff; }
  __device__ static int lowest() { return -highest() - 1; }
};
template <>
struct Limits<unsigned char> {
  __device__ static unsigned char highest() { return 255; }
  __device__ static unsigned char lowest() { return 0; }
};

// What sums of T are joined in.
template <class T>
struct WideSum {
  typedef std::int64_t type;
};
template <>
struct WideSum<double> {
  typedef double type;
};
template <>
struct WideSum<float> {
  typedef double type;
};

__device__ inline float plus_square(float sum, float x) { return __fmaf_rn(x, x, sum); }
__device__ inline double plus_square(double sum, double x) { return __fma_rn(x, x, sum); }
template <class T>
__device__ T plus_square(T sum, T x) {
  return static_cast<T>(sum + x * x);
}

// What elements of T are summed in: integers in int64, which their sum has as well.
template <class T>
struct SumArithmetic {
  typedef std::int64_t type;
};
template <>
struct SumArithmetic<double> {
  typedef double type;
};
template <>
struct SumArithmetic<float> {
  typedef float type;
};

// Slots of neighbouring elements are folded in T, an Arithmetic, and those joined in Wide.
template <class T>
struct Sum {
  typedef T Folded;
  typedef typename SumArithmetic<T>::type Arithmetic;
  typedef typename WideSum<T>::type Wide;
  static constexpr bool widens = false;
  __device__ static T identity() { return T(0); }
  __device__ static T fold(T acc, T x) { return static_cast<T>(acc + x); }
  __device__ static Wide join(Wide a, Wide b) { return a + b; }
};

template <class T>
struct SumSquares : Sum<T> {
  static constexpr bool widens = true;  // results have the type of the arithmetic
  __device__ static T fold(T acc, T x) { return plus_square(acc, x); }
};

template <class T>
struct Max {
  typedef T Folded;
  typedef T Arithmetic;
  typedef T Wide;
  static constexpr bool widens = false;
  __device__ static T identity() { return Limits<T>::lowest(); }
  __device__ static T fold(T acc, T x) { return x > acc || x != x ? x : acc; }
  __device__ static T join(T a, T b) { return fold(a, b); }
};

template <class T>
struct Min {
  typedef T Folded;
  typedef T Arithmetic;
  typedef T Wide;
  static constexpr bool widens = false;
  __device__ static T identity() { return Limits<T>::highest(); }
  __device__ static T fold(T acc, T x) { return x < acc || x != x ? x : acc; }
  __device__ static T join(T a, T b) { return fold(a, b); }
};

// Combines values of lanes; warp shuffles do not support one-byte types.
template <class R>
struct JoinLanes {
  typedef typename R::Wide W;
  typedef typename Either<(sizeof(W) < 4), std::int32_t, W>::type Shuffled;
  __device__ Shuffled operator()(Shuffled a, Shuffled b) const {
    return static_cast<Shuffled>(R::join(static_cast<W>(a), static_cast<W>(b)));
  }
};

// In reductions of columns, the number of rows that a thread reduces together; the 8 warps of a
// block alternate, and slices consist of whole rounds.
constexpr int rows_together = 8;
constexpr std::int64_t round_rows = 8 * rows_together;

// What a kernel is given: as in ReduceGeometry.
struct Problem {
  AxisSteps kept, reduced;
  std::int64_t inner, stride, results, length, slices;

  // For rows of columns; there are at least as many whole rounds as slices.
  __device__ std::int64_t first_row(std::int64_t slice) const {
    return slice == slices ? length : length / round_rows * slice / slices * round_rows;
  }
  // Where element `at` of those folded into a result lies, from the first.
  __device__ std::int64_t place(std::int64_t at) const {
    if (reduced.rank == 0) return at * stride;
    const std::int64_t row = quotient(at, inner);
    return reduced.offset(row) + (at - row * inner) * stride;
  }
};

// One slice of one result for each group of `threads` in blocks of 256.
template <class R, int threads, class Source, class Output>
__device__ void rows(const Problem& p, const Source& source, const Output& output) {
  typedef typename R::Folded T;
  typedef typename R::Wide W;
  typedef typename JoinLanes<R>::Shuffled Shuffled;
  constexpr int width = Source::width, flight = Source::rows_in_flight;
  const std::int64_t task =
      static_cast<std::int64_t>(blockIdx.x) * (256 / threads) + threadIdx.x / threads;
  const int lane = static_cast<int>(threadIdx.x) % threads;
  if (task >= p.results * p.slices) return;
  const std::int64_t result = task / p.slices, slice = task % p.slices;
  const std::int64_t base = p.kept.offset(result);
  W total = static_cast<W>(R::identity());
  const auto take = [&](const typename Source::Slot& slot) {
    typename Source::Value values[width];
    T part = R::identity();
    source.values(slot, values);
#pragma unroll
    for (int k = 0; k < width; ++k) part = R::fold(part, static_cast<T>(values[k]));
    total = R::join(total, static_cast<W>(part));
  };
  // Results are made of whole slots, and so are slices.
  const std::int64_t slots = p.length / width, end = slots * (slice + 1) / p.slices;
  std::int64_t i = slots * slice / p.slices + lane;
  if (flight > 1)
    for (; i + (flight - 1) * threads < end; i += flight * threads) {
      typename Source::Slot fetched[flight];
#pragma unroll
      for (int f = 0; f < flight; ++f)
        fetched[f] = source.fetch(base + p.place((i + f * threads) * width));
#pragma unroll
      for (int f = 0; f < flight; ++f) take(fetched[f]);
    }
  for (; i < end; i += threads) take(source.fetch(base + p.place(i * width)));
  total = static_cast<W>(Group<threads>{lane}.join(static_cast<Shuffled>(total), JoinLanes<R>{}));
  if (lane == 0) output.write(p.results, slice, result, total);
}

// `width` neighbouring columns a thread of blocks of (32, 8); blockIdx: columns, kept row, slice.
template <class R, class Source, class Output>
__device__ void columns(const Problem& p, const Source& source, const Output& output) {
  typedef typename R::Folded T;
  typedef typename R::Wide W;
  constexpr int width = Source::width, flight = Source::columns_in_flight;
  static_assert(rows_together % flight == 0, "rows are fetched in equal parts");
  __shared__ W parts[8][32 * width];
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x) * width;
  const std::int64_t slice = blockIdx.z;
  const std::int64_t first = p.first_row(slice) + threadIdx.y, end = p.first_row(slice + 1);
  for (std::int64_t row = blockIdx.y; row < p.results / p.inner; row += gridDim.y) {
    W total[width];
#pragma unroll
    for (int k = 0; k < width; ++k) total[k] = static_cast<W>(R::identity());
    if (column < p.inner) {
      const std::int64_t base = p.kept.offset(row) + column * p.stride;
      // Rows of a round are folded in T, then joined with the rest.
      const auto fold = [&](const auto& offset) {
        T part[width];
        const auto begin = [&] {
#pragma unroll
          for (int k = 0; k < width; ++k) part[k] = R::identity();
        };
        const auto take = [&](const typename Source::Slot& slot) {
          typename Source::Value values[width];
          source.values(slot, values);
#pragma unroll
          for (int k = 0; k < width; ++k) part[k] = R::fold(part[k], static_cast<T>(values[k]));
        };
        const auto join = [&] {
#pragma unroll
          for (int k = 0; k < width; ++k) total[k] = R::join(total[k], static_cast<W>(part[k]));
        };
        std::int64_t r = first;
        for (; r + 8 * (rows_together - 1) < end; r += round_rows) {
          begin();
#pragma unroll
          for (int i = 0; i < rows_together; i += flight) {
            typename Source::Slot fetched[flight];
#pragma unroll
            for (int f = 0; f < flight; ++f)
              fetched[f] = source.fetch(base + offset(r + 8 * (i + f)));
#pragma unroll
            for (int f = 0; f < flight; ++f) take(fetched[f]);
          }
          join();
        }
        for (; r < end; r += 8) {
          begin();
          take(source.fetch(base + offset(r)));
          join();
        }
      };
      // One axis, or several that continue one another, is the usual case, and needs no division.
      const std::int64_t step = p.reduced.stride[0];
      if (p.reduced.rank <= 1)
        fold([step](std::int64_t r) { return r * step; });
      else
        fold([&p](std::int64_t r) { return p.reduced.offset(r); });
    }
    __syncthreads();  // parts of the row before have been read
#pragma unroll
    for (int k = 0; k < width; ++k) parts[threadIdx.y][threadIdx.x * width + k] = total[k];
    __syncthreads();
    if (threadIdx.y != 0 || column >= p.inner) continue;
#pragma unroll
    for (int k = 0; k < width; ++k) {
      for (int y = 1; y < 8; ++y) total[k] = R::join(total[k], parts[y][threadIdx.x * width + k]);
      output.write(p.results, slice, row * p.inner + column + k, total[k]);
    }
  }
}

}  // namespace ebb::cuda::fold
