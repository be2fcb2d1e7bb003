#include "prune/block_walk.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "ebb/error.h"
#include "ebb/ops.h"
#include "ebb/program.h"
#include "ebb/prune/structure.h"
#include "passes/rewrite.h"

namespace ebb::prune {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// `outputs` as functions of `input`, which takes the place of `cut`.
Graph cut_at(const std::vector<Tensor>& outputs, const Tensor& cut, const Tensor& input) {
  Graph graph;
  graph.outputs = outputs;
  Rewriter rewriter;
  for (const auto& node : topological_order(graph)) {
    if (node == cut.node()) {
      std::vector<Tensor> values;
      for (int o = 0; o < static_cast<int>(node->outputs().size()); ++o)
        values.push_back(o == cut.output() ? input : Tensor(node, o));
      rewriter.replace(*node, std::move(values));
    } else if (std::any_of(node->inputs().begin(), node->inputs().end(),
                           [&](const Tensor& t) { return rewriter[t] != t; })) {
      rewriter.replace(*node, rewriter.copy(*node));
    }
  }
  Graph result = rewriter.apply(graph);
  result.inputs = {input};
  return result;
}

// Weights of a linear layer in float64 as (outputs, inputs), whichever way they are stored.
class MatrixCopy {
 public:
  MatrixCopy(const nn::NamedVariable& named, int input_axis)
      : variable_(named.variable), transposed_(input_axis == 0) {
    const Shape& shape = variable_.shape();
    matrix.outputs = shape[1 - input_axis], matrix.inputs = shape[input_axis];
    const std::vector<float> stored = eval(cast(variable_, f32)).to_vector<float>();
    values_.resize(stored.size());
    for (std::int64_t r = 0; r < matrix.outputs; ++r)
      for (std::int64_t c = 0; c < matrix.inputs; ++c)
        values_[at(r * matrix.inputs + c)] = static_cast<double>(stored[place(r, c)]);
    matrix.weights = values_;
  }

  void write_back() {
    std::vector<float> stored(values_.size());
    for (std::int64_t r = 0; r < matrix.outputs; ++r)
      for (std::int64_t c = 0; c < matrix.inputs; ++c)
        stored[place(r, c)] = static_cast<float>(values_[at(r * matrix.inputs + c)]);
    variable_.assign(
        eval(cast(to_device(Tensor::from(stored, variable_.shape()), variable_.device()),
                  variable_.dtype())));
  }

  WeightMatrix matrix;

 private:
  std::size_t place(std::int64_t r, std::int64_t c) const {
    return at(transposed_ ? c * matrix.outputs + r : r * matrix.inputs + c);
  }

  Variable variable_;
  bool transposed_;
  std::vector<double> values_;
};

// The sums for each input of a block's products.
using InputSums = std::unordered_map<Tensor, std::vector<double>>;

// Walks through the blocks with the values that enter each, one tensor for each batch.
class Calibration {
 public:
  Calibration(const Structure& s, const std::vector<Batch>& batches) : s_(s) {
    Graph graph;
    graph.inputs = s.inputs;
    graph.outputs = {s.blocks.front().entry};
    Program program(graph);
    for (const Batch& batch : batches) {
      program.run(batch.tensors);
      entering_.push_back(program.output(0));
    }
  }

  InputSums sums(std::size_t block, InputSum kind) const {
    std::vector<Tensor> inputs, outputs;
    for (const Product& p : s_.products)
      if (p.block == block && std::find(inputs.begin(), inputs.end(), p.input) == inputs.end()) {
        const Tensor x = cast(p.input, f32);
        inputs.push_back(p.input);
        outputs.push_back(kind == InputSum::squares ? sum_squares(x, {0})
                                                    : matmul(x, x, Transpose::yes));
      }
    Program program = compiled(outputs, block);
    InputSums result;
    for (const Tensor& value : entering_) {
      program.run({value});
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        const std::vector<float> part = program.output(static_cast<int>(i)).to_vector<float>();
        std::vector<double>& sum = result[inputs[i]];
        sum.resize(part.size(), 0.0);
        for (std::size_t j = 0; j < part.size(); ++j) sum[j] += static_cast<double>(part[j]);
      }
    }
    if (kind == InputSum::products)
      for (auto& [input_value, sum] : result) {
        const std::int64_t rows =
            input_value.shape()[0] * static_cast<std::int64_t>(entering_.size());
        for (double& value : sum) value *= 2.0 / static_cast<double>(rows);
      }
    return result;
  }

  // Replaces what enters a block by what leaves it.
  void pass(std::size_t block) {
    Program program = compiled({s_.blocks[block].exit}, block);
    for (Tensor& value : entering_) {
      program.run({value});
      value = program.output(0);
    }
  }

 private:
  Program compiled(const std::vector<Tensor>& outputs, std::size_t block) const {
    const Tensor& entry = s_.blocks[block].entry;
    return Program(cut_at(outputs, entry, input(entry.type(), "block", entry.device())));
  }

  const Structure& s_;
  std::vector<Tensor> entering_;
};

void check_chain(const Structure& s) {
  if (s.products.empty())
    throw ValueError("prune: the model has no matrices in blocks, which are those that are pruned");
  for (std::size_t b = 1; b < s.blocks.size(); ++b)
    if (s.blocks[b].entry != s.blocks[b - 1].exit)
      throw ValueError(fmt::format("prune: block \"{}\" does not read what \"{}\" gives",
                                   s.blocks[b].path, s.blocks[b - 1].path));
}

}  // namespace

void change_matrices(nn::ModuleBase& model, const LossFunction& loss,
                     const std::vector<Batch>& batches, const std::vector<TensorType>& batch_types,
                     InputSum sum, const ChangeMatrix& change) {
  const Structure s = find_structure(model, loss, batch_types);
  check_chain(s);
  std::optional<Calibration> calibration;
  if (sum != InputSum::none) calibration.emplace(s, batches);
  for (std::size_t block = 0; block < s.blocks.size(); ++block) {
    const InputSums sums = calibration ? calibration->sums(block, sum) : InputSums{};
    for (const Product& product : s.products) {
      if (product.block != block) continue;
      const nn::NamedVariable& parameter = s.variables[product.variable];
      MatrixCopy copy(parameter, product.input_axis);
      std::vector<double> own = calibration ? sums.at(product.input) : std::vector<double>{};
      try {
        change(parameter, copy.matrix, own);
      } catch (const ValueError& error) {
        throw ValueError(fmt::format("{}: {}", parameter.path, error.what()));
      }
      copy.write_back();
    }
    if (calibration && block + 1 < s.blocks.size()) calibration->pass(block);
  }
}

}  // namespace ebb::prune
