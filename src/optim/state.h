// Shared by rules: checks of options, and types of floating-point state.
#pragma once

#include <fmt/core.h>

#include <cmath>

#include "ebb/error.h"
#include "ebb/optim/rule.h"
#include "ops/optimizer_step.h"

namespace ebb::optim {

// Errors name the field; NaN and infinity are invalid.
inline void require_not_negative(double value, std::string_view what) {
  if (!(value >= 0.0 && std::isfinite(value)))
    throw ValueError(fmt::format("{} must be finite and not negative, but is {}", what, value));
}

inline void require_rate(double rate) { require_not_negative(rate, "a learning rate (lr)"); }

inline void require_positive(std::optional<double> value, std::string_view what) {
  if (value && !(*value > 0.0 && std::isfinite(*value)))
    throw ValueError(fmt::format("{} must be positive and finite, but is {}", what, *value));
}

// Of running means.
inline void require_decay(double value, std::string_view what) {
  if (!(value >= 0.0 && value < 1.0))
    throw ValueError(fmt::format("{} must be at least 0 and below 1, but is {}", what, value));
}

inline void require_state_dtype(DType dtype) {
  if (dtype != f32 && dtype != bf16)
    throw ValueError(
        fmt::format("state is kept in float32 or bfloat16, but {} is asked for", name(dtype)));
}

// `updates` plus the update of the companion, if there is one.
inline std::vector<Update> with_companion(const UpdateInputs& in, const Tensor& companion,
                                          std::vector<Update> updates) {
  if (companion) updates.push_back({in.companion, companion});
  return updates;
}

// State with an element for each of the parameter's, in `dtype` as options give it.
inline TensorType like_parameter(const nn::NamedVariable& parameter, DType dtype = f32) {
  const DType own = parameter.variable.dtype();
  return {parameter.variable.shape(), dtype == bf16 ? bf16 : state_dtype(own)};
}

}  // namespace ebb::optim
