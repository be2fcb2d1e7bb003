// The innermost parts of a bfloat16 product with AVX-512 BF16: panels, which hold factors in the
// layout of the instruction, and the product of two panels.
//
// The instruction takes pairs: it adds x[2p] y[2p] + x[2p + 1] y[2p + 1] to a float32 sum in each
// of 16 lanes. A panel holds `width` lanes, which are rows of the first factor or columns of the
// second; for each pair p along the inner axis it holds the pair of every lane, 4 bytes each, one
// after the other. An odd last number is paired with 0.
//
// Nothing here may be called where bfloat16_panels_work() is false: the instructions do not exist
// there.
#pragma once

#include <cstdint>

#include "ebb/half.h"

namespace ebb {

// Rows and columns that one product of panels keeps in registers: 14 × 2 sums of 16 lanes, which
// with the numbers being multiplied is all 32 of them.
inline constexpr int panel_rows = 14, panel_columns = 32;

// The environment variable ONEDNN_MAX_CPU_ISA (AVX2, say), which holds oneDNN to older
// instructions, holds for these too.
bool bfloat16_panels_work();

// A pair of neighbours along the inner axis.
using BFloat16Pair = std::uint32_t;

inline std::int64_t pairs_of(std::int64_t depth) { return (depth + 1) / 2; }

// What is packed: lane i's number at depth k is from[i * lane_stride + k * depth_stride], one
// stride being 1.
struct PanelSource {
  const BFloat16* from = nullptr;
  std::int64_t lane_stride = 0, depth_stride = 0;
  int lanes = 0;
  std::int64_t depth = 0;
};

// Writes pairs_of(depth) × width pairs; lanes past the source's are 0. width ≤ 32.
void pack_panel(const PanelSource& source, int width, BFloat16Pair* to);

// The product of a panel of `rows` lanes and one of `columns` lanes, padded to a multiple of 16.
// It is added to `sums` if `add`. It goes to `out`, plus the bias and rounded once, if there is
// one, and otherwise to `sums`.
struct PanelProduct {
  const BFloat16Pair *a = nullptr, *b = nullptr;
  std::int64_t pairs = 0;
  int rows = 0, columns = 0;
  float* sums = nullptr;
  std::int64_t sums_stride = 0;  // from one row to the next
  bool add = false;
  BFloat16* out = nullptr;
  std::int64_t out_stride = 0;
  const BFloat16* bias = nullptr;  // of the columns; may be null
};
void multiply_panels(const PanelProduct& product);

}  // namespace ebb
