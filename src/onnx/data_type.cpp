#include "onnx/data_type.h"

namespace ebb::onnx {

std::int64_t data_type(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return 1;
    case DType::uint8:
      return 2;
    case DType::int32:
      return 6;
    case DType::int64:
      return 7;
    case DType::boolean:
      return 9;
    case DType::float16:
      return 10;
    case DType::float64:
      return 11;
    case DType::bfloat16:
      break;
  }
  return 16;
}

std::int64_t data_type(SmallType type) { return type == SmallType::int8 ? 3 : 22; }

}  // namespace ebb::onnx
