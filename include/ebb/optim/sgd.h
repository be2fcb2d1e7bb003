// Gradient descent: with momentum, and without any state.
#pragma once

#include "ebb/optim/rule.h"

namespace ebb::optim {

struct SGD {
  double lr = 0.1;
  double momentum = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;

  void visit(auto&& field) const {
    field("momentum", momentum);
    field("weight_decay", weight_decay);
    field("nesterov", nesterov);
  }
};
RulePtr make_rule(const SGD& options);

// LOMO (Lv et al., 2023): gradient descent without state, each parameter updated as soon as its
// gradient exists, so that no two gradients need exist together. The planner does that for every
// optimizer (UpdateTiming::early); LOMO adds that no update may depend on other gradients. So its
// clipping uses one gradient at a time. TrainOptions::clip_norm, the norm of all gradients
// together, works too, but keeps every gradient until the last one is known.
struct LOMO {
  double lr = 1e-3;
  double weight_decay = 0.0;  // on the parameter itself
  // Clamps every element of a gradient to [-clip_value, clip_value]: changes its direction.
  std::optional<double> clip_value = {};
  // Scales each parameter's gradient down to this norm separately: keeps its direction, but not its
  // length relative to other gradients. Acts before clip_value.
  std::optional<double> clip_parameter_norm = {};

  void visit(auto&& field) const {
    field("weight_decay", weight_decay);
    field("clip_value", clip_value);
    field("clip_parameter_norm", clip_parameter_norm);
  }
};
RulePtr make_rule(const LOMO& options);

}  // namespace ebb::optim
