// Adafactor (Shazeer and Stern, 2018): second moments of a matrix kept as one number for each row
// and each column. Tensors of higher rank are stacks of matrices over their last two axes; vectors
// keep the whole second moment.
#pragma once

#include <optional>

#include "ebb/optim/rule.h"

namespace ebb::optim {

// The defaults are the paper's; torch.optim.Adafactor differs only in `decay_by_step`. With
// `scale_by_parameter` and `relative_step` off the learning rate is `lr`, as recommended for
// fine-tuning.
struct Adafactor {
  double lr = 1e-2;  // with relative_step the largest relative step
  // The relative step is at most 1 / sqrt(t); with scale_by_parameter, in units of the parameter's
  // size.
  bool relative_step = true;
  bool warm_up = false;  // the largest relative step grows along a line to `lr` at step 10^4
  bool scale_by_parameter = true;  // steps are in units of the parameter's root mean square
  double beta2_decay = -0.8;       // second moments have beta2 = 1 - t^beta2_decay
  double eps_square = 1e-30;       // added to squared gradients
  double eps_scale = 1e-3;         // least root mean square of a parameter
  // Updates whose root mean square is larger are scaled down to it; none: never.
  std::optional<double> clip_threshold = 1.0;
  std::optional<double> beta1 = {};  // of a first moment, kept in full; none: without one
  double weight_decay = 0.0;         // on the parameter itself
  // Whether the decay is multiplied by the step size actually used, or by `lr`.
  bool decay_by_step = true;

  void visit(auto&& field) const {
    field("relative_step", relative_step);
    field("warm_up", warm_up);
    field("scale_by_parameter", scale_by_parameter);
    field("beta2_decay", beta2_decay);
    field("eps_square", eps_square);
    field("eps_scale", eps_scale);
    field("clip_threshold", clip_threshold);
    field("beta1", beta1);
    field("weight_decay", weight_decay);
    field("decay_by_step", decay_by_step);
  }
};
RulePtr make_rule(const Adafactor& options);

}  // namespace ebb::optim
