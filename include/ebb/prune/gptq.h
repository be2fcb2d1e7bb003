// GPTQ (Frantar et al. 2022): packs weights in few bits, column by column; later columns compensate
// for the rounding errors of earlier ones, judged by a layer's inputs. The scales are those of
// plain rounding (ebb/quantised.h), so the packed bytes have the same form and size.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ebb/prune/weights.h"
#include "ebb/quantised.h"

namespace ebb::prune {

struct GptqOptions {
  double damping = 0.01;     // added to the diagonal, as a share of its mean
  std::int64_t block = 128;  // columns whose errors reach later columns together
};

// Returns the packed bytes of a matrix; its weights become the values that the bytes stand for.
// `hessian` is 2 / N Σ x xᵀ over N inputs x; it is overwritten.
std::vector<std::uint8_t> pack_by_gptq(const WeightMatrix& matrix, std::span<double> hessian,
                                       const Encoding& encoding, const GptqOptions& options = {});

struct QuantisedWeights {
  std::int64_t matrices = 0, weights = 0;  // that GPTQ has packed
  WalkReport walk = {};
};

// Receives the packed bytes of each weight inside blocks. The model's own weights become the values
// that the bytes stand for, in the model's dtype.
using TakePacked =
    std::function<void(const std::string& parameter, std::vector<std::uint8_t> bytes)>;
QuantisedWeights pack_blocks(nn::ModuleBase& model, const LossFunction& loss,
                             const std::vector<Batch>& batches, LowBits kind,
                             const TakePacked& take, const GptqOptions& options = {},
                             const WalkOptions& walk = {});

// Packs the linear layers of a model that has its weights (nn::adapt with `kind`): layers inside
// blocks by GPTQ, block by block, on data of one type; other layers by plain rounding.
QuantisedWeights quantise_weights(nn::ModuleBase& model, const LossFunction& loss,
                                  const std::vector<Batch>& batches, LowBits kind,
                                  const GptqOptions& options = {});

}  // namespace ebb::prune
