// ebb's dtypes by the numbers of ONNX's TensorProto.DataType.
#pragma once

#include <cstdint>

#include "ebb/dtype.h"

namespace ebb::onnx {

std::int64_t data_type(DType dtype);

}  // namespace ebb::onnx
