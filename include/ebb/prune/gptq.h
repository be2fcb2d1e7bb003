// GPTQ (Frantar et al. 2022): weights in few bits whose rounding errors are made up for by the
// weights after them, judged by a layer's inputs. The scales are those of plain rounding
// (ebb/quantised.h), so the packed bytes are of the same form and size.
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

// The packed bytes of a matrix, whose weights become the values that the bytes stand for. `hessian`
// is 2 / N Σ x xᵀ over N inputs x; it is overwritten.
std::vector<std::uint8_t> pack_by_gptq(const WeightMatrix& matrix, std::span<double> hessian,
                                       const Encoding& encoding, const GptqOptions& options = {});

struct QuantisedWeights {
  std::int64_t matrices = 0, weights = 0;  // that GPTQ has packed
  WalkReport walk = {};
};

// Gets the packed bytes of each weight inside blocks. The model's own weights become the values
// that the bytes stand for, in its dtype.
using TakePacked =
    std::function<void(const std::string& parameter, std::vector<std::uint8_t> bytes)>;
QuantisedWeights pack_blocks(nn::ModuleBase& model, const LossFunction& loss,
                             const std::vector<Batch>& batches, LowBits kind,
                             const TakePacked& take, const GptqOptions& options = {},
                             const WalkOptions& walk = {});

// Packs the linear layers of a model that has its weights (nn::adapt with `kind`): those inside
// blocks by GPTQ, block by block, on data of one type; others by plain rounding.
QuantisedWeights quantise_weights(nn::ModuleBase& model, const LossFunction& loss,
                                  const std::vector<Batch>& batches, LowBits kind,
                                  const GptqOptions& options = {});

}  // namespace ebb::prune
