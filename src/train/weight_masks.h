// The masks of a training step: which weights have one, what the step does with them, and the
// program that changes them between two steps.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ebb/nn/module.h"
#include "ebb/optim/optimizer.h"
#include "ebb/program.h"
#include "ebb/train/train_step.h"

namespace ebb {

// A weight that has a mask.
struct MaskedWeight {
  nn::NamedVariable parameter;
  std::int64_t input_axis = 0;  // of a matrix: the axis that its product sums over

  std::string mask_path() const { return parameter.path + ".mask"; }
  std::string movement_path() const { return parameter.path + ".movement"; }
};

// The parameters that only products and convolutions of the loss read. Embeddings, an output layer
// inside a fused loss, biases and norms are not among them. An error if there are none, or if the
// pattern does not fit one.
std::vector<MaskedWeight> masked_weights(const Tensor& loss,
                                         const std::vector<nn::NamedVariable>& parameters,
                                         const std::optional<Pattern>& pattern);

class WeightMasks {
 public:
  WeightMasks(const SparseTraining& how, optim::StateStore& store, Device device)
      : how_(how), store_(store), device_(device) {}

  const SparseTraining& how() const { return how_; }

  // Finds the weights, the first time that a step is traced. An error if the optimizer has state
  // that cannot be set to zero weight by weight.
  void find(const Tensor& loss, const std::vector<nn::NamedVariable>& parameters,
            const optim::Optimizer& optimizer);
  const std::vector<MaskedWeight>& weights() const { return weights_; }
  bool owns(const std::string& state_path) const;
  void make_state();

  // --- In the step

  // The masks of all parameters after the step, empty for those without, and their updates. RigL
  // reads the gradients; `exchange` is the share that it exchanges, a float64 scalar.
  struct InStep {
    std::vector<Tensor> masks;
    std::vector<Update> updates;
  };
  InStep in_step(const std::vector<nn::NamedVariable>& parameters,
                 const std::vector<Tensor>& gradients, const Tensor& exchange);
  // The updates of masks, without effect where the step is not taken: `taken` is a boolean, or
  // empty if it always is.
  static std::vector<Update> updates(const InStep& masks, const Tensor& taken);
  // Sets the gradients of dead weights to zero.
  static void apply(const InStep& masks, std::vector<Tensor>& gradients);
  // What movement pruning sums up: -w · ∂loss/∂w. Gradients are to be multiplied by `factor`, a
  // scalar or empty; if it is 0, the step is not taken.
  std::vector<Update> movement(const std::vector<nn::NamedVariable>& parameters,
                               const std::vector<Tensor>& gradients, const Tensor& factor);

  // --- Between steps

  // Changes the masks if that is due after this many steps, and sets dead weights and their state
  // to zero. At the start it does so even if nothing is due, for masks that came from a file.
  enum class When : bool { start, after_step };
  void change(std::int64_t steps, const optim::Optimizer& optimizer, const CompileOptions& options,
              When when);

  TrainStep::MaskCounts counts() const;
  std::map<std::string, Variable> by_path();

 private:
  const MaskedWeight* find_weight(const nn::NamedVariable& parameter) const;
  Variable mask_of(const MaskedWeight& weight);
  Variable movement_of(const MaskedWeight& weight);
  Graph change_graph(const optim::Optimizer& optimizer);

  const SparseTraining how_;
  optim::StateStore& store_;
  const Device device_;
  std::vector<MaskedWeight> weights_;
  std::optional<Program> program_;
};

}  // namespace ebb
