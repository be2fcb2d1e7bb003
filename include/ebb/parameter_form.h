// How a parameter in bfloat16 is kept between steps so that updates smaller than its last digit are
// not lost. The forms other than `plain` are of bfloat16 alone; those with a companion keep a
// second tensor beside the parameter, which only its updates read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ebb/tensor.h"

namespace ebb {

struct ParameterForm {
  enum class Kind : std::uint8_t {
    plain,        // rounded to nearest, whatever its dtype
    stochastic,   // rounded up or down by chance, right on average
    compensated,  // companion: what rounding left over, in bfloat16 (Kahan)
    completed,    // companion: the next `bits` bits of the float32 it stands for, as bytes
  };
  Kind kind = Kind::plain;
  int bits = 0;           // of `completed`: 16, which makes it float32, or 8, rounded by chance
  std::uint64_t key = 0;  // of chance
  bool operator==(const ParameterForm&) const = default;

  void visit(auto&& field) {
    static constexpr std::string_view names[] = {"plain", "stochastic", "compensated", "completed"};
    field.choice("form", kind, names);
    field("form_bits", bits);
    field("form_key", key);
  }

  bool has_companion() const { return kind == Kind::compensated || kind == Kind::completed; }
  bool draws() const { return kind == Kind::stochastic || (kind == Kind::completed && bits == 8); }
  // Bytes of 16 bits lie in an axis of their own, the last.
  TensorType companion(const TensorType& parameter) const {
    TensorType type = parameter;
    if (kind != Kind::completed) return type;
    type.dtype = u8;
    if (bits == 16) type.shape.push_back(2);
    return type;
  }
};

}  // namespace ebb
