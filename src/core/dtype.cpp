#include "ebb/dtype.h"

#include <fmt/core.h>

#include <array>

#include "ebb/error.h"

namespace ebb {
namespace {

struct DTypeRow {
  std::string_view name;
  std::int64_t size;
  bool floating;
  bool integer;
};

// In the order of the enumerators.
constexpr std::array<DTypeRow, 8> dtype_rows{{{"float64", 8, true, false},
                                              {"float32", 4, true, false},
                                              {"float16", 2, true, false},
                                              {"bfloat16", 2, true, false},
                                              {"int64", 8, false, true},
                                              {"int32", 4, false, true},
                                              {"uint8", 1, false, true},
                                              {"bool", 1, false, false}}};

const DTypeRow& row(DType dtype) { return dtype_rows[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::string_view name(DType dtype) { return row(dtype).name; }
Bytes size_of(DType dtype) { return {row(dtype).size}; }
bool is_floating(DType dtype) { return row(dtype).floating; }
bool is_half(DType dtype) { return dtype == f16 || dtype == bf16; }
bool is_integer(DType dtype) { return row(dtype).integer; }

DType parse_dtype(std::string_view text) {
  for (DType dtype : all_dtypes)
    if (name(dtype) == text) return dtype;
  throw ValueError(
      fmt::format("'{}' is not a dtype: expected float64, float32, float16, bfloat16, int64, "
                  "int32, uint8 or bool",
                  text));
}

}  // namespace ebb
