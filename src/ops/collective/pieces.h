// How a flat tensor is divided among ranks, and each range into pieces. Sums are exchanged piece by
// piece, so that received data fits into a small workspace.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ebb/bytes.h"
#include "ebb/device.h"
#include "ebb/dtype.h"
#include "ops/collective/collective.h"

namespace ebb {

// The ranges of a flat tensor, in elements or bytes. The last ones may be shorter, or empty.
struct Ranges {
  std::int64_t elements, ranks, range;

  std::int64_t begin(std::int64_t rank) const { return std::min(elements, rank * range); }
  std::int64_t size(std::int64_t rank) const { return begin(rank + 1) - begin(rank); }
  bool even() const { return elements == ranks * range; }
};

struct Pieces {
  std::int64_t elements = 1;  // of one piece of a range
  std::int64_t count = 0;     // pieces of a range
};

// The pieces for ranges of this many elements, of which every rank sends `slots` blocks. An
// exchange between GPUs costs a launch and moves hundreds of bytes per nanosecond, so its pieces
// are larger.
inline Pieces pieces_of(std::int64_t range, std::int64_t ranks, std::int64_t slots, DType dtype,
                        Device::Kind kind) {
  const Bytes workspace = kind == Device::Kind::cuda ? 32_MiB : 4_MiB;
  const std::int64_t most =
      workspace.count / (size_of(dtype).count * ranks * slots) / range_alignment * range_alignment;
  Pieces pieces;
  pieces.elements = std::max<std::int64_t>(1, std::min(range, std::max<std::int64_t>(most, 4096)));
  pieces.count = (range + pieces.elements - 1) / pieces.elements;
  return pieces;
}

}  // namespace ebb
