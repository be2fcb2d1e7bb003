// ebb's dtypes by the numbers of ONNX's TensorProto.DataType.
#pragma once

#include <cstdint>

#include "ebb/dtype.h"
#include "onnx/graph.h"

namespace ebb::onnx {

std::int64_t data_type(DType dtype);
std::int64_t data_type(SmallType type);

}  // namespace ebb::onnx
