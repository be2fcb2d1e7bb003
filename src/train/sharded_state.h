// Optimizer state as ranges: every rank has a range of each parameter's state and updates that
// range of the parameter.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ebb/train/train_step.h"
#include "train/parameter_ranges.h"

namespace ebb {

// A range of each parameter, as a parameter for the optimizer (`range_shape`). If weights are
// ranges too, `weights` has the variables; otherwise a variable stands for the range and never has
// a value.
std::vector<nn::NamedVariable> ranges_of(const std::vector<nn::NamedVariable>& parameters,
                                         const RankOptions& options,
                                         const ParameterRanges* weights);

// The updates of all parameters and of their state by the gradients' ranges: each rank updates its
// range of the weights and receives the others, unless `weights` says that it keeps no others.
std::vector<Update> sharded_updates(const optim::Optimizer& optimizer,
                                    const std::vector<nn::NamedVariable>& parameters,
                                    const std::vector<Tensor>& gradient_ranges, const Tensor& rate,
                                    const Tensor& step, const Tensor& gradient_scale,
                                    optim::StateStore& state, const RankOptions& options,
                                    const ParameterRanges* weights);

// Throws unless the optimizer updates each element, or each block of few elements, by itself, and
// by numbers that do not depend on the element's place.
void require_elementwise(const optim::Optimizer& optimizer);

// The whole types of the state that is kept as ranges, by path; empty if nothing is sharded.
std::map<std::string, TensorType> sharded_state(const nn::ModuleBase& model, const TrainStep& step);

}  // namespace ebb
