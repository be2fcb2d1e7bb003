// Gradient descent: with momentum, and in the form that keeps nothing at all.
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
// optimizer (UpdateTiming::early); what LOMO adds is that nothing about an update may wait for the
// other gradients. Its ways of clipping look at one gradient alone. TrainOptions::clip_norm, the
// norm of all gradients together, works too, but keeps every gradient until the last one is known.
struct LOMO {
  double lr = 1e-3;
  double weight_decay = 0.0;  // on the parameter itself
  // Holds every element of a gradient in [-clip_value, clip_value]: bends its direction.
  std::optional<double> clip_value = {};
  // Scales a gradient down to this norm if it is longer, each parameter's by itself: keeps its
  // direction, but not its length relative to the other parameters' gradients. Acts before
  // clip_value.
  std::optional<double> clip_parameter_norm = {};

  void visit(auto&& field) const {
    field("weight_decay", weight_decay);
    field("clip_value", clip_value);
    field("clip_parameter_norm", clip_parameter_norm);
  }
};
RulePtr make_rule(const LOMO& options);

}  // namespace ebb::optim
