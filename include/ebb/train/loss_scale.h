// Dynamic loss scaling for float16, in which small gradients would underflow: the loss is
// multiplied by a scale, and the gradients are divided by it. The rules are those of PyTorch's
// GradScaler, as nodes of the step's graph: all decisions are made on the device.
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

// Its variables are part of the optimizer's state, and so of checkpoints: the scale, steps since it
// last changed, steps taken and steps skipped.
class LossScaler {
 public:
  LossScaler(const LossScale& options, optim::StateStore& store, Device device);

  const Variable& scale() const { return scale_; }
  Tensor scaled(const Tensor& loss) const;

  // Decides whether to take a step. `norm` is the global norm of the scaled gradients. If a
  // gradient is infinite or NaN, the step is skipped and the scale is reduced.
  struct Decision {
    Tensor taken;           // a condition
    Tensor norm;            // of the unscaled gradients
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
