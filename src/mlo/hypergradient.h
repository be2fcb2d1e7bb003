// Hypergradients: derivatives of a level's parameters with respect to parameters that its loss
// reads. A vector in the parameters of one level is propagated through that level's best response
// to the parameters of the next level on a path. One method per file; all results are graphs and
// can be differentiated again.
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

// A vector normalised for float16, and the factor that undoes the normalisation in the results.
// Without a loss scale, the vector itself.
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
