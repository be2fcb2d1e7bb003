#include "prune/block_walk.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <set>

#include "ebb/error.h"
#include "ebb/ops.h"
#include "ebb/program.h"
#include "ebb/storage.h"
#include "prune/block_values.h"
#include "prune/blocks.h"
#include "prune/walk_bytes.h"

namespace ebb::prune {
namespace {

// Weights of a linear layer in float64 as (outputs, inputs), whichever way they are stored.
class MatrixCopy {
 public:
  MatrixCopy(const nn::NamedVariable& named, int input_axis)
      : variable_(named.variable), transposed_(input_axis == 0) {
    values_ = to_device(eval(oriented(cast(variable_, f64))), device::cpu);
    const Shape& shape = values_.shape();
    matrix.outputs = shape[0], matrix.inputs = shape[1];
    matrix.weights = {reinterpret_cast<double*>(values_.node()->storage()->data()),
                      static_cast<std::size_t>(shape.elements())};
  }

  // In the form and dtype of the variable. Values are first rounded to float32, the type from which
  // other dtypes are converted.
  Tensor stored() const { return eval(cast(cast(oriented(values_), f32), variable_.dtype())); }

  WeightMatrix matrix;

 private:
  Tensor oriented(const Tensor& x) const { return transposed_ ? transpose(x) : x; }

  Variable variable_;
  bool transposed_;
  Tensor values_;
};

class Walk {
 public:
  Walk(const Structure& s, const BlockGraphs& graphs, const std::vector<Batch>& batches,
       const MatrixChange& change, const WalkOptions& options)
      : s_(s), graphs_(graphs), batches_(batches), change_(change), options_(options) {}

  WalkReport run() {
    choose();
    if (computes()) enter();
    for (std::size_t block = 0; block < s_.blocks.size(); ++block) visit(block);
    if (options_.losses) report_.loss_before = mean_loss(*before_);
    if (options_.losses) report_.loss_after = mean_loss(*now_);
    for (std::size_t v = 0; v < s_.variables.size(); ++v)
      if (!kept_.contains(v)) hold({v}), keep({v}), release();
    return report_;
  }

 private:
  bool computes() const { return change_.sum != InputSum::none || options_.losses; }

  // Takes the first choice that keeps the budget.
  void choose() {
    const WalkBytes bytes(s_, graphs_, change_, options_, computes() ? batches_.size() : 0);
    std::optional<Bytes> least;
    for (const WalkChoice& choice : walk_choices) {
      const bool differs = computes() || !(choice.values_in_file || choice.one_input_at_a_time);
      if (!differs || (choice.one_input_at_a_time && change_.sum != InputSum::products)) continue;
      choice_ = choice;
      report_ = {options_.fixed + bytes.peak(choice),
                 choice.values_in_file,
                 choice.one_input_at_a_time,
                 {},
                 {}};
      if (!options_.budget || report_.planned <= *options_.budget) return;
      least = least ? std::min(*least, report_.planned) : report_.planned;
    }
    throw MemoryError(
        fmt::format("a budget of {} cannot be kept: at least {} are needed, {} of them for the "
                    "process itself{}",
                    to_string(*options_.budget), to_string(*least), to_string(options_.fixed),
                    computes() ? "; smaller batches and shorter sequences take less" : ""));
  }

  // Loads the values of these variables for the next stage.
  void hold(const std::vector<std::size_t>& variables) {
    for (const std::size_t v : variables)
      if (options_.store && held_.insert(v).second) options_.store->fetch(s_.variables[v]);
  }
  void keep(const std::vector<std::size_t>& variables) {
    for (const std::size_t v : variables)
      if (kept_.insert(v).second && options_.store) options_.store->keep(s_.variables[v]);
  }
  void release() {
    for (const std::size_t v : held_) options_.store->release(s_.variables[v]);
    held_.clear();
  }

  BlockValues no_values() const {
    return BlockValues(s_.blocks.front().entry.type(), batches_.size(),
                       choice_.values_in_file ? std::optional(options_.folder) : std::nullopt);
  }

  void enter() {
    const Graph graph = graphs_.entry();
    hold(graphs_.variables_in(graph));
    now_.emplace(no_values());
    if (options_.losses) before_.emplace(no_values());
    {
      Program program(graph);
      for (std::size_t i = 0; i < batches_.size(); ++i) {
        program.run(batches_[i].tensors);
        const Tensor value = program.output(0);
        now_->set(i, value);
        if (before_) before_->set(i, value);
      }
    }
    release();
  }

  void visit(std::size_t block) {
    hold(s_.blocks[block].variables);
    const std::vector<Tensor> inputs = graphs_.inputs_of(block);
    std::vector<std::pair<Variable, Tensor>> changed;
    if (choice_.one_input_at_a_time)
      for (const Tensor& value : inputs) judge(block, {value}, changed);
    else
      judge(block, inputs, changed);
    if (before_) pass(block, *before_);
    for (auto& [variable, value] : changed) {
      variable.assign(value);
      value = {};
    }
    const bool last = block + 1 == s_.blocks.size();
    if (now_ && (!last || options_.losses)) pass(block, *now_);
    keep(s_.blocks[block].variables);
    release();
  }

  // Changes those matrices of the block that read one of `inputs`; the model itself does not
  // change.
  void judge(std::size_t block, const std::vector<Tensor>& inputs,
             std::vector<std::pair<Variable, Tensor>>& changed) {
    const std::vector<Variable> sums = summed(block, inputs);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      std::vector<const Product*> readers;
      for (const Product& p : s_.products)
        if (p.block == block && p.input == inputs[i]) readers.push_back(&p);
      for (const Product* p : readers) {
        const nn::NamedVariable& parameter = s_.variables[p->variable];
        MatrixCopy copy(parameter, p->input_axis);
        std::vector<double> own;
        std::span<double> used;
        if (!sums.empty()) used = sums_for(sums[i], p == readers.back(), own);
        if (change_.sum == InputSum::products) {
          const std::int64_t rows =
              inputs[i].shape()[0] * static_cast<std::int64_t>(batches_.size());
          for (double& value : used) value *= 2.0 / static_cast<double>(rows);
        }
        try {
          change_.change(parameter, copy.matrix, used);
        } catch (const ValueError& error) {
          throw ValueError(fmt::format("{}: {}", parameter.path, error.what()));
        }
        changed.emplace_back(parameter.variable, copy.stored());
      }
    }
  }

  // The last matrix that reads the sums gets the sums themselves, others get a copy.
  static std::span<double> sums_for(const Variable& sum, bool last, std::vector<double>& own) {
    const Storage& storage = *sum.node()->storage();
    if (last && storage.on_host())
      return {reinterpret_cast<double*>(storage.data()),
              static_cast<std::size_t>(sum.shape().elements())};
    own = sum.to_vector<double>();
    return own;
  }

  std::vector<Variable> summed(std::size_t block, const std::vector<Tensor>& inputs) const {
    if (change_.sum == InputSum::none) return {};
    const SumsGraph sums = graphs_.sums(block, inputs, change_.sum);
    Program program(sums.graph);
    for (std::size_t i = 0; i < now_->size(); ++i) program.run({now_->get(i)});
    return sums.sums;
  }

  // Replaces the block's inputs by its outputs.
  void pass(std::size_t block, BlockValues& values) const {
    Program program(graphs_.pass(block));
    for (std::size_t i = 0; i < values.size(); ++i) {
      program.run({values.get(i)});
      values.set(i, program.output(0));
    }
  }

  double mean_loss(const BlockValues& values) {
    const Graph graph = graphs_.loss();
    hold(graphs_.variables_in(graph));
    double total = 0.0;
    {
      Program program(graph);
      for (std::size_t i = 0; i < values.size(); ++i) {
        std::vector<Tensor> inputs{values.get(i)};
        inputs.insert(inputs.end(), batches_[i].tensors.begin(), batches_[i].tensors.end());
        program.run(inputs);
        total += program.scalar(0);
      }
    }
    release();
    return total / static_cast<double>(values.size());
  }

  const Structure& s_;
  const BlockGraphs& graphs_;
  const std::vector<Batch>& batches_;
  const MatrixChange& change_;
  const WalkOptions& options_;
  WalkChoice choice_;
  WalkReport report_;
  std::optional<BlockValues> before_, now_;  // through the original and the changed blocks
  std::set<std::size_t> held_, kept_;        // variables
};

}  // namespace

WalkReport change_matrices(nn::ModuleBase& model, const LossFunction& loss,
                           const std::vector<Batch>& batches,
                           const std::vector<TensorType>& batch_types, const MatrixChange& change,
                           const WalkOptions& options) {
  if (options.losses && batches.empty()) throw ValueError("prune: losses need data");
  const Structure s = trace_blocks(model, loss, batch_types);
  const BlockGraphs graphs(s);
  return Walk(s, graphs, batches, change, options).run();
}

}  // namespace ebb::prune
