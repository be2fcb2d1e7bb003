#include "core/cuda/check.h"
#include "ops/cuda/tile_copy.cuh"

namespace ebb::cuda {

bool make_tile_map(CUtensorMap& map, const TileSource& source, int rows) {
  // The driver's function, found through the runtime: programs start without a driver.
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                           cudaEnableDefault, &result),
          "cuTensorMapEncodeTiled");
    return result == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(function) : nullptr;
  }();
  if (!encode) return false;
  constexpr cuuint64_t element = 2;  // bytes
  const auto bytes = [](std::int64_t elements) {
    return static_cast<cuuint64_t>(elements) * element;
  };
  const cuuint64_t sizes[4] = {
      static_cast<cuuint64_t>(source.size), static_cast<cuuint64_t>(source.length),
      static_cast<cuuint64_t>(source.heads), static_cast<cuuint64_t>(source.batches)};
  const cuuint64_t strides[3] = {bytes(source.row_stride), bytes(source.head_stride),
                                 bytes(source.batch_stride)};
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(rows), 1, 1}, steps[4] = {1, 1, 1, 1};
  return encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, const_cast<void*>(source.data), sizes,
                strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace ebb::cuda
