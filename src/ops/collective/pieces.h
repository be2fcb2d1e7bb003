// Sums are exchanged piece by piece, so that what is received fits into a small workspace.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ebb/bytes.h"
#include "ebb/dtype.h"

namespace ebb {

struct Pieces {
  std::int64_t elements = 1;  // of one piece of a range
  std::int64_t count = 0;     // pieces of a range
};

// Of ranges of this many elements, `slots` blocks of which every rank sends.
inline Pieces pieces_of(std::int64_t range, std::int64_t ranks, std::int64_t slots, DType dtype) {
  constexpr Bytes workspace = 4_MiB;
  const std::int64_t most = workspace.count / (size_of(dtype).count * ranks * slots);
  Pieces pieces;
  pieces.elements = std::max<std::int64_t>(1, std::min(range, std::max<std::int64_t>(most, 4096)));
  pieces.count = (range + pieces.elements - 1) / pieces.elements;
  return pieces;
}

}  // namespace ebb
