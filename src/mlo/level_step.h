// What the step of a level is made of, as graphs: its loss, its gradients and its updates.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ebb/mlo/problem.h"
#include "mlo/vectors.h"

namespace ebb::mlo {

std::vector<Tensor> tensors_of(const std::vector<nn::NamedVariable>& parameters);

// The loss of a batch, in training mode. This is the one place where a problem's code is called,
// and where its precision is chosen. Running statistics are left as they are.
StepOutput traced_output(Problem& problem, const Batch& batch);

struct TracedGradients {
  Tensor loss;                            // mean over the parts
  std::map<std::string, Tensor> metrics;  // the same
  Vectors gradients;                      // of that loss
  std::vector<Update> buffers;            // running statistics of the problem's own module
};

// The gradients in `wrt`, which are variables, of the mean loss over the parts of a batch.
TracedGradients traced_gradients(Problem& problem, const std::vector<Batch>& parts,
                                 const std::vector<Tensor>& wrt);

struct TracedUpdates {
  std::vector<Update> updates;  // of parameters and of the optimizer's state
  Tensor norm;                  // of all gradients together, before clipping; empty without it
};

// What the gradients of the problem's trainable parameters do to them.
TracedUpdates traced_updates(Problem& problem, Vectors gradients, const Tensor& rate,
                             const Tensor& step, optim::StateStore& state);

}  // namespace ebb::mlo
