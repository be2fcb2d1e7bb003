// The innermost parts of a product with the vector and matrix instructions of a processor: panels,
// which hold factors in the order in which the instructions read them, and the product of two
// panels.
//
// A panel holds `width` lanes, which are rows of the first factor or columns of the second, and of
// each lane the numbers along the inner axis, padded with zeros to a whole number of steps.
//
// Kernels:
//   float32 with AVX-512        a step is one number
//   bfloat16 with AVX-512 BF16  a step is a pair: the instruction adds x[2p] y[2p] +
//                               x[2p + 1] y[2p + 1] to a float32 sum in each of 16 lanes
//   bfloat16 with AMX           a step is 32 numbers: the instruction multiplies tiles of 16 lanes
//                               by 32 numbers and adds to 16 × 16 float32 sums
#pragma once

#include <cstdint>

#include "ebb/half.h"

namespace ebb {

// Columns that one product of panels computes, and the lanes of a register or tile.
inline constexpr int panel_columns = 32, panel_lanes = 16;

// What is packed: lane i's number at depth k is from[i * lane_stride + k * depth_stride]. One
// stride is 1, except that of an axis of one element, which may be any.
template <class T>
struct PanelSource {
  const T* from = nullptr;
  std::int64_t lane_stride = 0, depth_stride = 0;
  int lanes = 0;
  std::int64_t depth = 0;
};

// The product of a panel of `rows` lanes and one of `columns` lanes. It is added to `sums` if
// `add`, as a whole: a chain of additions is no longer than a panel, so that errors do not grow
// with the inner axis. It goes to `out`, plus the bias and rounded once to T, if there is one, and
// otherwise to `sums`.
template <class T>
struct PanelProduct {
  const T *a = nullptr, *b = nullptr;
  std::int64_t depth = 0;
  int rows = 0, columns = 0;
  float* sums = nullptr;
  std::int64_t sums_stride = 0;  // from one row to the next
  bool add = false;
  T* out = nullptr;
  std::int64_t out_stride = 0;
  const T* bias = nullptr;  // of the columns; may be null
};

template <class T>
struct PanelKernels {
  int rows;            // the most lanes of a panel of the first factor
  int rows_step;       // its lanes are padded to a multiple of this
  std::int64_t step;   // numbers along the inner axis
  std::int64_t depth;  // the most of them that a panel is worth: it stays in a cache
  // Writes `width` lanes of whole steps; lanes past the source's are 0. Lanes of the first factor
  // are a multiple of rows_step, those of the second a multiple of panel_lanes.
  void (*pack_first)(const PanelSource<T>& source, int width, T* to);
  void (*pack_second)(const PanelSource<T>& source, int width, T* to);
  void (*multiply)(const PanelProduct<T>& product);
  // A thread calls these before its first product and after its last; may be null.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
};

// The fastest kernels of this processor, or null. The environment variable ONEDNN_MAX_CPU_ISA
// (AVX2, say), which holds oneDNN to older instructions, holds for these too.
template <class T>
const PanelKernels<T>* panel_kernels();
template <>
const PanelKernels<float>* panel_kernels();
template <>
const PanelKernels<BFloat16>* panel_kernels();

// Kernels of one set of instructions each, or null.
const PanelKernels<BFloat16>* bfloat16_vector_kernels();
const PanelKernels<BFloat16>* bfloat16_tile_kernels();

}  // namespace ebb
