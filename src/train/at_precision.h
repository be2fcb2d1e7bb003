// Computing a model's results at the precision of its training.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "ebb/nn/module.h"
#include "ebb/precision.h"

namespace ebb {

class AtPrecision {
 public:
  explicit AtPrecision(Precision precision);

  // The same value, computed at the precision and then cast to `dtype`. In float32 nothing changes.
  Tensor operator()(const Tensor& value, DType dtype);

 private:
  std::optional<HalfPrecision> half_;  // one for all values, so that a parameter is cast once
};

// Throws a DTypeError unless all parameters have the dtype that the precision trains. `who` begins
// the message.
void require_parameter_dtype(const std::vector<nn::NamedVariable>& parameters, Precision precision,
                             std::string_view who = "");

}  // namespace ebb
