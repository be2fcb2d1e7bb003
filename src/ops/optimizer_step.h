// What the optimizers' update ops share: the scalars a step is given, and the type their state has.
#pragma once

#include <cmath>

#include "ebb/op.h"

namespace ebb {

// State and arithmetic are at least float32, whatever the parameter's dtype.
inline DType state_dtype(DType parameter) { return parameter == f64 ? f64 : f32; }

inline void require_scalar(const Call& call, int input, DType dtype, std::string_view what) {
  if (call.inputs[static_cast<std::size_t>(input)] != TensorType{{}, dtype})
    call.fail_shape(std::string(what) + " must be a scalar of " + std::string(name(dtype)));
}

inline void require_like_parameter(const Call& call, int input, DType dtype,
                                   std::string_view what) {
  if (call.inputs[static_cast<std::size_t>(input)] != TensorType{call.shape(0), dtype})
    call.fail_shape(std::string(what) + " must be " + to_string(TensorType{call.shape(0), dtype}));
}

}  // namespace ebb
