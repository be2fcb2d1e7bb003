// Products of a few rows with a packed matrix: codes become numbers in registers and are used at
// once, for all rows of x.
//
// Every result is summed in the same order whatever the number of rows of x and of threads is.
#pragma once

#include "ebb/bytes.h"
#include "ebb/quantised.h"
#include "ops/workspace_areas.h"

namespace ebb {

class FewRowsOfCodes {
 public:
  // The most rows of x, at least 8, for which this is faster than products of unpacked tiles.
  static std::int64_t most_rows(LowBits kind, DType dtype);

  FewRowsOfCodes(const Encoding& encoding, std::int64_t rows, DType dtype);
  Bytes workspace() const { return areas_.total(); }

  // x (rows, columns of the matrix) → out (rows, rows of the matrix)
  template <class S>
  void run(const S* x, const std::uint8_t* packed, S* out, std::byte* workspace) const;

 private:
  Encoding e_;
  std::int64_t rows_;
  WorkspaceAreas areas_;
  Bytes x_at_, out_at_;
};

}  // namespace ebb
