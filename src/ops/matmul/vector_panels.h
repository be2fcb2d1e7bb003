// Panels whose products are computed 16 lanes at a time, for float32 and bfloat16. For each unit
// along the inner axis, a panel holds the unit of every lane, 4 bytes each, one after the other. In
// float32 a unit is one number; in bfloat16 it is a pair of neighbours along the inner axis.
//
// A source that includes this describes its instructions in a class: Number, Unit (4 bytes), Factor
// (a register of 16 units), load, spread, run, add, widened and write.
#pragma once

#include "ops/matmul/panel_kernels.h"

namespace ebb {
namespace {

// Rows and columns that one product of panels keeps in registers: 14 × 2 sums of 16 lanes, which
// with the numbers being multiplied is all 32 of them.
constexpr int vector_rows = 14;

// `vectors` registers of 16 columns each.
template <class Kind, int rows, int vectors>
EBB_PANELS void multiply(const PanelProduct<typename Kind::Number>& p) {
  __mmask16 present[vectors];
  __m512 sums[rows][vectors];
#pragma GCC unroll 2
  for (int v = 0; v < vectors; ++v) present[v] = first16(p.columns - v * panel_lanes);
#pragma GCC unroll 14
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sums[r][v] = _mm512_setzero_ps();

  const auto *a = reinterpret_cast<const typename Kind::Unit*>(p.a),
             *b = reinterpret_cast<const typename Kind::Unit*>(p.b);
  const std::int64_t units = units_of<Kind>(p.depth);
  for (std::int64_t unit = 0; unit < units; ++unit, a += rows, b += vectors * panel_lanes) {
    typename Kind::Factor column[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) column[v] = Kind::load(b + v * panel_lanes);
#pragma GCC unroll 14
    for (int r = 0; r < rows; ++r) {
      const typename Kind::Factor row = Kind::spread(a[r]);
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sums[r][v] = Kind::add(sums[r][v], row, column[v]);
    }
  }

  if (p.add)
#pragma GCC unroll 14
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v)
        sums[r][v] = _mm512_add_ps(
            _mm512_maskz_loadu_ps(present[v], p.sums + r * p.sums_stride + v * panel_lanes),
            sums[r][v]);
  if (!p.out) {
#pragma GCC unroll 14
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v)
        _mm512_mask_storeu_ps(p.sums + r * p.sums_stride + v * panel_lanes, present[v], sums[r][v]);
    return;
  }
  __m512 bias[vectors];
#pragma GCC unroll 2
  for (int v = 0; v < vectors; ++v)
    bias[v] = p.bias ? Kind::widened(p.bias + v * panel_lanes, present[v]) : _mm512_setzero_ps();
#pragma GCC unroll 14
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v)
      Kind::write(p.out + r * p.out_stride + v * panel_lanes, present[v],
                  p.bias ? _mm512_add_ps(sums[r][v], bias[v]) : sums[r][v]);
}

template <class Kind>
using Multiply = void (*)(const PanelProduct<typename Kind::Number>&);

template <class Kind, int... before>
constexpr std::array<std::array<Multiply<Kind>, 2>, vector_rows> by_size(
    std::integer_sequence<int, before...>) {
  return {{{multiply<Kind, before + 1, 1>, multiply<Kind, before + 1, 2>}...}};
}

// The kernel for the size of a product.
template <class Kind>
void multiply_any(const PanelProduct<typename Kind::Number>& product) {
  static constexpr auto kernels = by_size<Kind>(std::make_integer_sequence<int, vector_rows>{});
  kernels[static_cast<std::size_t>(product.rows - 1)][product.columns > panel_lanes](product);
}

template <class Kind>
void pack_vectors(const PanelSource<typename Kind::Number>& source, int width,
                  typename Kind::Number* to) {
  const auto units = reinterpret_cast<typename Kind::Unit*>(to);
  if (along_lanes(source))
    Kind::pack_along_lanes(source, width, units);
  else
    pack_along_depth<Kind>(source, width, units);
}

template <class Kind>
constexpr PanelKernels<typename Kind::Number> vector_kernels = {
    .rows = vector_rows,
    .rows_step = 1,
    .step = numbers_of_unit<Kind>,
    .depth = 512 * numbers_of_unit<Kind>,
    .pack_first = pack_vectors<Kind>,
    .pack_second = pack_vectors<Kind>,
    .multiply = multiply_any<Kind>};

}  // namespace
}  // namespace ebb
