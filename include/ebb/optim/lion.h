// Lion (Chen et al., 2023): steps of constant size in the direction of the sign of a mean gradient.
#pragma once

#include "ebb/optim/rule.h"

namespace ebb::optim {

// Use a rate 3 to 10 times smaller than Adam's, and a decay larger by the same factor.
struct Lion {
  double lr = 1e-4;
  double beta1 = 0.9;         // of the mean whose sign is the step
  double beta2 = 0.99;        // of the mean that is kept
  double weight_decay = 0.0;  // on the parameter itself
  DType state = f32;          // of the mean: float32 (float64 for float64 parameters) or bfloat16

  void visit(auto&& field) const {
    field("beta1", beta1);
    field("beta2", beta2);
    field("weight_decay", weight_decay);
    field("state", state);
  }
};
RulePtr make_rule(const Lion& options);

}  // namespace ebb::optim
