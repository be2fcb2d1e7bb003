// How a bfloat16 parameter is stored between steps so that updates smaller than its last bit are
// not lost. Forms other than `plain` are for bfloat16 only; forms with a companion store a second
// tensor, which only updates read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ebb/tensor.h"

namespace ebb {

struct ParameterForm {
  enum class Kind : std::uint8_t {
    plain,        // rounded to nearest, whatever its dtype
    stochastic,   // stochastic rounding: unbiased
    compensated,  // companion: the rounding error, in bfloat16 (Kahan)
    completed,    // companion: the next `bits` bits of the float32 value, as bytes
  };
  Kind kind = Kind::plain;
  int bits = 0;  // for `completed`: 16, which makes it a float32, or 8 with stochastic rounding
  std::uint64_t key = 0;  // of random rounding
  bool operator==(const ParameterForm&) const = default;

  void visit(auto&& field) {
    static constexpr std::string_view names[] = {"plain", "stochastic", "compensated", "completed"};
    field.choice("form", kind, names);
    field("form_bits", bits);
    field("form_key", key);
  }

  bool has_companion() const { return kind == Kind::compensated || kind == Kind::completed; }
  bool draws() const { return kind == Kind::stochastic || (kind == Kind::completed && bits == 8); }
  // With 16 bits, the two bytes of an element are an additional last axis.
  TensorType companion(const TensorType& parameter) const {
    TensorType type = parameter;
    if (kind != Kind::completed) return type;
    type.dtype = u8;
    if (bits == 16) type.shape.push_back(2);
    return type;
  }
};

}  // namespace ebb
