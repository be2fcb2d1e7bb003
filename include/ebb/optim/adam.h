// Adam and AdamW with moments in floating point.
#pragma once

#include <cstdint>

#include "ebb/optim/rule.h"

namespace ebb::optim {

// How a value is rounded to bfloat16. A second moment in bfloat16 rounded to nearest cannot shrink
// while beta2 > 1 - 2^-9: each step changes it by less than half a unit in the last place.
// Stochastic rounding is unbiased; its random numbers come from Philox, keyed by the parameter's
// path and the step, so that a run repeats its bits.
enum class Rounding : std::uint8_t { nearest, stochastic };

struct Adam {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.0;  // through the gradient
  DType state = f32;  // of the moments: float32 (float64 for float64 parameters) or bfloat16
  Rounding rounding = Rounding::nearest;  // of bfloat16 moments

  void visit(auto&& field) const {
    field("beta1", beta1);
    field("beta2", beta2);
    field("eps", eps);
    field("weight_decay", weight_decay);
    field("state", state);
    field("rounding", std::string(rounding == Rounding::nearest ? "nearest" : "stochastic"));
  }
};
RulePtr make_rule(const Adam& options);

struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.01;  // on the parameter itself
  DType state = f32;           // as in Adam
  Rounding rounding = Rounding::nearest;

  void visit(auto&& field) const {
    field("beta1", beta1);
    field("beta2", beta2);
    field("eps", eps);
    field("weight_decay", weight_decay);
    field("state", state);
    field("rounding", std::string(rounding == Rounding::nearest ? "nearest" : "stochastic"));
  }
};
RulePtr make_rule(const AdamW& options);

}  // namespace ebb::optim
