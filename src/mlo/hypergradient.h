// Hypergradients: how parameters of a level respond to parameters that its loss reads. A vector in
// the parameters of one level is taken through that level's best response into the parameters of
// the next on a path. One method a file; all are graphs and differentiable themselves.
#pragma once

#include "mlo/step_trace.h"

namespace ebb::mlo {

// vectorᵀ · d(parameters of `through`) / d(`to`).
struct Hop {
  StepTrace& trace;
  Level& through;
  Vectors vector;          // in the meta-trainable parameters of `through`
  std::vector<Tensor> to;  // variables that the loss of `through` reads

  const Config& config() const { return through.config(); }
  std::vector<Tensor> parameters() const {
    return tensors_of(through.problem().meta_trainable_parameters());
  }
  const StepOutput& output() const { return trace.output(through); }
  // The scale of the loss of `through`; empty: 1.
  Tensor scale() const { return StepTrace::scale(through); }
  // vᵀ · d²L / d(parameters) d(wrt) for its loss L: in its parameters, the Hessian times v.
  Vectors second_derivative(const Vectors& v, const std::vector<Tensor>& wrt) const;
};

// A vector at the size that float16 carries best, and what its images are multiplied with to be
// those of the vector itself. Without a scale the vector as it is.
struct Sized {
  Vectors vector;
  Tensor factor;  // a scalar, or empty: 1
};
Sized sized(const Vectors& vector, const Tensor& scale);

// By the method of `through`.
Vectors response(const Hop& hop);

Vectors darts(const Hop& hop);
Vectors sama(const Hop& hop);
Vectors neumann(const Hop& hop);
Vectors cg(const Hop& hop);
Vectors reinforce(const Hop& hop);
Vectors unrolled(const Hop& hop);

}  // namespace ebb::mlo
