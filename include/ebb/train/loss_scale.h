// Dynamic loss scaling for training in float16, whose smallest numbers gradients fall below: the
// loss is multiplied by a scale and the gradients divided by it. The rules are PyTorch's
// GradScaler's, as nodes of the step's graph: no decision of a step leaves the device.
#pragma once

#include <vector>

#include "ebb/graph.h"
#include "ebb/optim/rule.h"

namespace ebb {

struct LossScale {
  double initial = 65536.0;
  double growth = 2.0, backoff = 0.5;
  std::int64_t interval = 2000;  // steps without overflow after which the scale grows
};

// The scale and what it is changed by, as variables among the optimizer's state, where checkpoints
// keep them: the scale, steps since it last changed, steps taken and steps skipped.
class LossScaler {
 public:
  LossScaler(const LossScale& options, optim::StateStore& store, Device device);

  const Variable& scale() const { return scale_; }
  Tensor scaled(const Tensor& loss) const;

  // What a step does with its gradients, whose norm together is `norm`, still scaled. If any of
  // them is infinite or NaN, the step is not taken and the scale is backed off.
  struct Decision {
    Tensor taken;           // a condition
    Tensor norm;            // of the gradients themselves
    Tensor gradient_scale;  // of this step: the inverse of the scale, or 0
    Tensor step;            // the number of this step among those taken, from 1
    Tensor scale;           // in this step
    std::vector<Update> updates;
  };
  Decision decide(const Tensor& norm) const;

 private:
  LossScale options_;
  Variable scale_, unchanged_, taken_, skipped_;
};

}  // namespace ebb
