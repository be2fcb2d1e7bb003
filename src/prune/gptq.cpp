#include "ebb/prune/gptq.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "core/parallel.h"
#include "ebb/error.h"
#include "ebb/nn/adapt.h"
#include "ops/quantised_linear/codec.h"
#include "ops/quantised_linear/levels.h"
#include "prune/block_walk.h"
#include "prune/error_spread.h"

namespace ebb::prune {
namespace {

// A level of a block and its code.
struct Level {
  double value;
  int code;
};

// For a value divided by its scale: the nearest level that the encoder uses, and of two equally
// near ones the even one, as in plain rounding.
Level nearest(LowBits kind, double x) {
  if (kind == LowBits::nf4) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < nf4_levels.size(); ++i)
      if (std::abs(x - static_cast<double>(nf4_levels[i])) <=
          std::abs(x - static_cast<double>(nf4_levels[best])))
        best = i;
    return {static_cast<double>(nf4_levels[best]), static_cast<int>(best)};
  }
  const double top = static_cast<double>(top_level(kind)),
               level = std::nearbyint(std::clamp(x, -top, top));
  return {level, static_cast<int>(level) + (kind == LowBits::int8 ? int8_zero : 8)};
}

void set_code(const Encoding& e, std::uint8_t* row, std::int64_t column, int code) {
  if (e.bits() == 8) {
    row[column] = static_cast<std::uint8_t>(code);
    return;
  }
  std::uint8_t& byte = row[column / 2];
  byte =
      static_cast<std::uint8_t>(column % 2 == 0 ? (byte & 0xf0) | code : (byte & 0x0f) | code << 4);
}

}  // namespace

std::vector<std::uint8_t> pack_by_gptq(const WeightMatrix& m, std::span<double> hessian,
                                       const Encoding& e, const GptqOptions& options) {
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  if (m.outputs < 1 || m.inputs < 1 || m.weights.size() != at(m.outputs * m.inputs))
    throw ShapeError(fmt::format("prune: a matrix of {} × {} weights is expected, but {} came",
                                 m.outputs, m.inputs, m.weights.size()));
  if (e.rows != m.outputs || e.columns != m.inputs)
    throw ShapeError(fmt::format("prune: a matrix of {} × {} weights cannot be packed as {} × {}",
                                 m.outputs, m.inputs, e.rows, e.columns));
  if (options.block < 1)
    throw ValueError(
        fmt::format("prune: GPTQ's block has at least one column, but {} came", options.block));
  if (!std::all_of(m.weights.begin(), m.weights.end(), [](double w) { return std::isfinite(w); }))
    throw ValueError("prune: a weight is not finite");
  to_inverse_factor(m, hessian, options.damping);
  // Plain rounding gives the scales, and codes that are then replaced.
  std::vector<std::uint8_t> bytes(at(e.bytes()));
  {
    const std::vector<float> rounded(m.weights.begin(), m.weights.end());
    std::vector<float> scales(at(e.scales()));
    Packer packer(e, bytes.data(), scales.data());
    packer.rows(rounded.data(), 0, m.outputs);
    packer.finish();
  }
  const PackedMatrix packed(e, bytes.data());
  const std::int64_t width = std::min(options.block, m.inputs);
  std::vector<double> errors(at(m.outputs * width));  // threads must not allocate
  parallel_for(m.outputs, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t first = 0; first < m.inputs; first += width)
        spread_row(m, hessian, r, first, std::min(first + width, m.inputs),
                   errors.data() + r * width, [&](std::int64_t column, double w) {
                     const auto scale = static_cast<double>(packed.scale(r, column / e.block));
                     const Level level = nearest(e.kind, scale == 0.0 ? 0.0 : w / scale);
                     set_code(e, bytes.data() + r * e.row_bytes(), column, level.code);
                     return level.value * scale;
                   });
  });
  return bytes;
}

QuantisedWeights pack_blocks(nn::ModuleBase& model, const LossFunction& loss,
                             const std::vector<Batch>& batches, LowBits kind,
                             const TakePacked& take, const GptqOptions& options,
                             const WalkOptions& walk) {
  if (batches.empty()) throw ValueError("prune: gptq needs data");
  QuantisedWeights report;
  MatrixChange change;
  change.sum = InputSum::products;
  change.change = [&](const nn::NamedVariable& parameter, const WeightMatrix& m,
                      std::span<double> sums) {
    take(parameter.path,
         pack_by_gptq(m, sums, Encoding::usual(kind, m.outputs, m.inputs), options));
    ++report.matrices;
    report.weights += m.outputs * m.inputs;
  };
  change.scratch = [&](std::int64_t outputs, std::int64_t inputs) {
    const Encoding e = Encoding::usual(kind, outputs, inputs);
    constexpr std::int64_t number = sizeof(float), error = sizeof(double);
    return Bytes{e.bytes() + std::max(number * (outputs * inputs + e.scales()),
                                      error * outputs * std::min(options.block, inputs))};
  };
  report.walk = change_matrices(model, loss, batches, batches.front().types(), change, walk);
  return report;
}

QuantisedWeights quantise_weights(nn::ModuleBase& model, const LossFunction& loss,
                                  const std::vector<Batch>& batches, LowBits kind,
                                  const GptqOptions& options) {
  std::map<std::string, std::vector<std::uint8_t>> packed;  // by the weight's path
  const QuantisedWeights report = pack_blocks(
      model, loss, batches, kind,
      [&](const std::string& path, std::vector<std::uint8_t> bytes) {
        packed[path] = std::move(bytes);
      },
      options);
  nn::adapt(model, {.base = kind});
  for (const nn::NamedVariable& parameter : model.parameters()) {
    const auto found = packed.find(parameter.path);
    if (found == packed.end()) continue;
    if (!parameter.packed)
      throw ValueError(
          fmt::format("prune: \"{}\" is not the weight of a linear layer that can be "
                      "packed",
                      parameter.path));
    Variable variable = parameter.variable;
    variable.assign_bytes(std::as_bytes(std::span(found->second)));
    found->second = {};
  }
  return report;
}

}  // namespace ebb::prune
