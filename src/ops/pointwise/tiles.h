// Builds tile functions from scalar functions. `F` is a lambda without captures.
#pragma once

#include "core/vector_math.h"
#include "ops/pointwise/row.h"

namespace ebb {

template <class T>
const T* operand(const TileArgs& args, int i) {
  return static_cast<const T*>(args.in[static_cast<std::size_t>(i)]);
}

template <auto F, class In, class Out>
void tile1(const TileArgs& args) {
  const In* x = operand<In>(args, 0);
  Out* y = static_cast<Out*>(args.out);
#pragma GCC ivdep  // an output may be an operand itself, never a part of one
  for (std::int64_t i = 0; i < args.count; ++i) y[i] = static_cast<Out>(F(x[i]));
}

template <auto F, class In, class Out>
void tile2(const TileArgs& args) {
  const In* a = operand<In>(args, 0);
  const In* b = operand<In>(args, 1);
  Out* y = static_cast<Out*>(args.out);
#pragma GCC ivdep  // an output may be an operand itself, never a part of one
  for (std::int64_t i = 0; i < args.count; ++i) y[i] = static_cast<Out>(F(a[i], b[i]));
}

template <auto F, class First, class T>
void tile3(const TileArgs& args) {
  const First* a = operand<First>(args, 0);
  const T* b = operand<T>(args, 1);
  const T* c = operand<T>(args, 2);
  T* y = static_cast<T*>(args.out);
#pragma GCC ivdep  // an output may be an operand itself, never a part of one
  for (std::int64_t i = 0; i < args.count; ++i) y[i] = F(a[i], b[i], c[i]);
}

using Tiles = std::array<TileFunction, tile_types>;  // order: f64, f32, i64, i32, u8

template <auto F>
constexpr Tiles floating1() {
  return {tile1<F, double, double>, tile1<F, float, float>, nullptr, nullptr, nullptr};
}

template <auto F>
constexpr Tiles numeric1() {
  return {tile1<F, double, double>, tile1<F, float, float>, tile1<F, std::int64_t, std::int64_t>,
          tile1<F, std::int32_t, std::int32_t>, nullptr};
}

template <auto F>
constexpr Tiles floating2() {
  return {tile2<F, double, double>, tile2<F, float, float>, nullptr, nullptr, nullptr};
}

template <auto F>
constexpr Tiles numeric2() {
  return {tile2<F, double, double>, tile2<F, float, float>, tile2<F, std::int64_t, std::int64_t>,
          tile2<F, std::int32_t, std::int32_t>, tile2<F, std::uint8_t, std::uint8_t>};
}

template <auto F>
constexpr Tiles comparison() {
  return {tile2<F, double, std::uint8_t>, tile2<F, float, std::uint8_t>,
          tile2<F, std::int64_t, std::uint8_t>, tile2<F, std::int32_t, std::uint8_t>,
          tile2<F, std::uint8_t, std::uint8_t>};
}

}  // namespace ebb
