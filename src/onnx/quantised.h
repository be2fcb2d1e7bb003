// A linear layer's weight as ONNX quantises it: codes and a scale for each block of a row.
#pragma once

#include "onnx/graph.h"
#include "onnx/weights.h"

namespace ebb::onnx {

// The codes (out, in) and the scales, float32 (out, blocks), of a weight that is already packed, or
// that `bits` packs when the file is written: then only one matrix is in memory at a time.
// `transposed`: the weight in files is (in, out). NF4 has no form in ONNX: a ValueError.
struct QuantisedInitializers {
  Initializer codes, scales;
  std::int64_t block = 0;
};
QuantisedInitializers quantised_initializers(const Weights& weights, const std::string& name,
                                             const std::string& in_file, LowBits bits,
                                             bool transposed);

}  // namespace ebb::onnx
