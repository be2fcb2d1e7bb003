// Shared by kernels over contiguous rows: vectorised sums and maxima with a fixed order of
// operations, and conversion of half-type rows to float, one tile at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "ops/dispatch.h"
#include "ops/pointwise/convert.h"

namespace ebb::rows {

// Elements handled together. Half types are widened into a buffer of this size on the stack, and
// sums of a tile in the compute type join a total in double.
inline constexpr std::int64_t tile = 1024;

// The least number of rows per thread that pays for starting it.
inline std::int64_t grain(std::int64_t columns) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(columns, 1));
}

// Reads tiles of S as its compute type: in place, or widened into a buffer.
template <class S>
class TileReader {
 public:
  using T = Compute<S>;
  const T* operator()(const S* from, std::int64_t count) {
    if constexpr (std::is_same_v<S, T>) {
      return from;
    } else {
      widen(from, buffer_, count);
      return buffer_;
    }
  }

 private:
  T buffer_[std::is_same_v<S, T> ? 1 : tile];
};

// The same for writing: fill what `begin` gives, then `end`.
template <class S>
class TileWriter {
 public:
  using T = Compute<S>;
  T* begin(S* to) {
    if constexpr (std::is_same_v<S, T>)
      return to;
    else
      return buffer_;
  }
  void end(S* to, std::int64_t count) {
    if constexpr (!std::is_same_v<S, T>) narrow(buffer_, to, count);
  }

 private:
  T buffer_[std::is_same_v<S, T> ? 1 : tile];
};

// Calls body(at, count) for each tile of a row.
template <class Body>
void for_tiles(std::int64_t columns, const Body& body) {
  for (std::int64_t at = 0; at < columns; at += tile) body(at, std::min(tile, columns - at));
}

template <class T>
struct Vector {
  typedef T aligned __attribute__((vector_size(64)));
  typedef T loaded __attribute__((vector_size(64), aligned(alignof(T)), may_alias));
};

inline constexpr auto plus = [](auto& total, const auto& x) { total += x; };
inline constexpr auto largest = [](auto& most, const auto& x) { most = x > most ? x : most; };

// Folds `in` elementwise into four vectors of partial results with `step`, and joins those into one
// number with `join`. Both must work on numbers and on vectors.
template <class T, class Join, class Step, class... In>
T fold(T identity, std::int64_t count, const Join& join, const Step& step, const In*... in) {
  // Copies an unaligned vector into an aligned one before calling `step`, because template
  // arguments drop the alignment attribute.
  using V = typename Vector<T>::aligned;
  using L = typename Vector<T>::loaded;
  constexpr std::int64_t width = 64 / sizeof(T), ways = 4;
  const V start = identity - V{};  // every lane the identity: infinity minus 0 stays itself
  V v0 = start, v1 = start, v2 = start, v3 = start;
  std::int64_t i = 0;
  for (; i + ways * width <= count; i += ways * width) {
    step(v0, V(*reinterpret_cast<const L*>(in + i))...);
    step(v1, V(*reinterpret_cast<const L*>(in + i + width))...);
    step(v2, V(*reinterpret_cast<const L*>(in + i + 2 * width))...);
    step(v3, V(*reinterpret_cast<const L*>(in + i + 3 * width))...);
  }
  for (; i + width <= count; i += width) step(v0, V(*reinterpret_cast<const L*>(in + i))...);
  T rest = identity;
  for (; i < count; ++i) step(rest, in[i]...);
  join(v0, v1), join(v2, v3), join(v0, v2);
  for (int k = 0; k < static_cast<int>(width); ++k) join(rest, T(v0[k]));
  return rest;
}

template <class S>
Compute<S> max(const S* x, std::int64_t columns) {
  using T = Compute<S>;
  TileReader<S> read;
  T most = -std::numeric_limits<T>::infinity();
  for_tiles(columns, [&](std::int64_t at, std::int64_t count) {
    largest(most, fold(most, count, largest, largest, read(x + at, count)));
  });
  return most;
}

// Σ of what `step` adds for each element.
template <class S, class Step>
double sum_of(std::int64_t columns, const Step& step, const S* x) {
  TileReader<S> read;
  double total = 0.0;
  for_tiles(columns, [&](std::int64_t at, std::int64_t count) {
    total += static_cast<double>(fold(Compute<S>(0), count, plus, step, read(x + at, count)));
  });
  return total;
}

template <class S>
Compute<S> mean(const S* x, std::int64_t columns) {
  return static_cast<Compute<S>>(sum_of(columns, plus, x) / static_cast<double>(columns));
}

// Σ (x - mean)²
template <class S>
double squared_deviation(const S* x, Compute<S> mean, std::int64_t columns) {
  return sum_of(
      columns,
      [mean](auto& total, const auto& v) {
        const auto centred = v - mean;
        total += centred * centred;
      },
      x);
}

}  // namespace ebb::rows
