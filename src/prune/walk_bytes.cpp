#include "prune/walk_bytes.h"

#include <algorithm>

#include "ebb/program.h"
#include "ebb/storage.h"

namespace ebb::prune {
namespace {

Bytes pages(Bytes bytes) { return Storage::reservation(bytes); }

}  // namespace

Bytes matrix_bytes(const MatrixChange& change, const Product& product, const Shape& shape) {
  const std::int64_t inputs = shape[product.input_axis], outputs = shape[1 - product.input_axis];
  const Bytes values = pages(inputs * outputs * size_of(f64));
  // A transposed matrix is gathered and scattered through a copy.
  const Bytes copy = product.input_axis == 0 ? values : 0_B;
  return values + std::max(copy, change.scratch(outputs, inputs));
}

WalkBytes::WalkBytes(const Structure& structure, const BlockGraphs& graphs,
                     const MatrixChange& change, const WalkOptions& options, std::size_t batches)
    : s_(structure), graphs_(graphs), change_(change), options_(options), batches_(batches) {}

// A value is read from the file into a buffer and then into a tensor; a block's output is copied in
// the same way.
Bytes WalkBytes::values(const WalkChoice& choice) const {
  if (batches_ == 0) return {};
  const Bytes one = pages(s_.blocks.front().entry.type().bytes());
  const std::int64_t sets = options_.losses ? 2 : 1,
                     kept = choice.values_in_file ? 0 : sets * static_cast<std::int64_t>(batches_);
  return (kept + 3) * one;
}

Bytes WalkBytes::of_variables(const std::vector<std::size_t>& variables) const {
  Bytes total, extra;
  for (const std::size_t v : variables) {
    total += pages(s_.variables[v].variable.type().bytes());
    if (options_.store) extra = std::max(extra, options_.store->extra_bytes(s_.variables[v]));
  }
  return total + extra;
}

Bytes WalkBytes::of_program(const Graph& graph) const {
  const Plan plan = plan_program(graph);
  Bytes bytes = plan.peak;
  for (const Leaf& leaf : plan.leaves)
    if (graphs_.is_variable(leaf.node)) bytes = bytes - pages(leaf_size(leaf.type, leaf.tier));
  return bytes;
}

Bytes WalkBytes::of_stage(const Graph& graph) const {
  return of_variables(graphs_.variables_in(graph)) + of_program(graph);
}

Bytes WalkBytes::of_block(std::size_t block, const WalkChoice& choice) const {
  // Changed matrices are kept until all matrices of the block have been judged.
  Bytes waiting;
  for (const Product& p : s_.products)
    if (p.block == block) waiting += pages(s_.variables[p.variable].variable.type().bytes());
  const auto judged = [&](const std::vector<Tensor>& inputs) {
    SumsGraph sums;
    Bytes computed, held;
    if (change_.sum != InputSum::none) {
      sums = graphs_.sums(block, inputs, change_.sum);
      computed = of_program(sums.graph);
      for (const Variable& sum : sums.sums) held += pages(sum.type().bytes());
    }
    Bytes changed;
    for (const Product& p : s_.products) {
      if (p.block != block) continue;
      const auto at = std::find(inputs.begin(), inputs.end(), p.input);
      if (at == inputs.end()) continue;
      Bytes own = matrix_bytes(change_, p, s_.variables[p.variable].variable.shape());
      // Methods overwrite the sums, so all matrices with these inputs except the last get a copy.
      if (!sums.sums.empty())
        own += pages(sums.sums[static_cast<std::size_t>(at - inputs.begin())].type().bytes());
      changed = std::max(changed, held + own);
    }
    return std::max(computed, changed);
  };
  const std::vector<Tensor> inputs = graphs_.inputs_of(block);
  Bytes most;
  if (choice.one_input_at_a_time)
    for (const Tensor& value : inputs) most = std::max(most, judged({value}));
  else
    most = judged(inputs);
  most += waiting;
  if (batches_ > 0) most = std::max(most, waiting + of_program(graphs_.pass(block)));
  return of_variables(s_.blocks[block].variables) + most;
}

Bytes WalkBytes::peak(const WalkChoice& choice) const {
  Bytes most;
  if (batches_ > 0) {
    most = of_stage(graphs_.entry());
    if (options_.losses) most = std::max(most, of_stage(graphs_.loss()));
  }
  for (std::size_t block = 0; block < s_.blocks.size(); ++block)
    most = std::max(most, of_block(block, choice));
  for (std::size_t v = 0; v < s_.variables.size(); ++v) most = std::max(most, of_variables({v}));
  Bytes resident;  // without a store all variables stay; those of a stage are counted twice
  if (!options_.store)
    for (const nn::NamedVariable& named : s_.variables)
      resident += pages(named.variable.type().bytes());
  return resident + most + values(choice);
}

}  // namespace ebb::prune
