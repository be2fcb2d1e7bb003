// The default form of bfloat16 parameters.
#pragma once

#include "ebb/parameter_form.h"
#include "ebb/precision.h"

namespace ebb {

inline ParameterForm usual_form(Precision precision) {
  if (precision == Precision::pure_bf16) return {.kind = ParameterForm::Kind::stochastic};
  if (precision == Precision::split_bf16 || precision == Precision::fp8)
    return {.kind = ParameterForm::Kind::completed, .bits = 16};
  return {};
}

}  // namespace ebb
