#include "mlo/leaf_step.h"

#include "ebb/grad.h"
#include "ebb/node.h"
#include "ebb/ops.h"
#include "ebb/replace.h"
#include "graph/draw_scope.h"
#include "train/buffer_chain.h"

namespace ebb::mlo {
namespace {

struct LeafOutput {
  StepOutput output;
  std::vector<Update> buffers;  // as this leaf alone would update them
};

LeafOutput leaf_output(Problem& problem, const Batch& leaf, std::int64_t batch, std::size_t place,
                       AtPrecision& at_precision, LeafCopies& copies) {
  const DrawScope draws(copies.draws(batch, place));
  const nn::ForwardScope alone(nn::Mode::train);
  StepOutput output = output_of(problem, leaf, at_precision);
  std::vector<Update> buffers = of_own_buffers(problem, alone.updates());
  for (Update& update : buffers) {
    const DType dtype = update.target.dtype();
    update.value = cast(at_precision(update.value, dtype), dtype);
  }
  // Rewrites all of them at once, so that they keep sharing subexpressions.
  std::vector<Tensor*> places{&output.loss, &output.log_probability, &output.item_losses};
  for (auto& [key, metric] : output.metrics) places.push_back(&metric);
  for (Update& update : buffers) places.push_back(&update.value);
  std::erase_if(places, [](const Tensor* t) { return !*t; });
  std::vector<Tensor> values;
  for (const Tensor* t : places) values.push_back(*t);
  std::vector<Variable> kept;
  for (const Update& update : alone.updates()) kept.push_back(update.target);
  values = copies.reading(place, values, kept);
  for (std::size_t i = 0; i < places.size(); ++i) *places[i] = values[i];
  return {std::move(output), std::move(buffers)};
}

// Statistics are updated by the leaves of a batch in their order, and by the batches of an update
// in theirs.
std::vector<Update> chained(const std::vector<std::vector<std::vector<Update>>>& batches,
                            const LeafCopies& copies) {
  std::vector<Update> all;
  for (const std::vector<std::vector<Update>>& leaves : batches) {
    std::vector<Update> next = chained_updates(leaves, copies.options(), copies.blocks());
    for (std::size_t i = 0; i < all.size(); ++i)
      next[i].value = replace(next[i].value, {{next[i].target, all[i].value}});
    all = std::move(next);
  }
  return all;
}

void mark_gradient(const Tensor& gradient) {
  if (gradient) optim::as_made(gradient).node()->set_category(Category::gradients);
}

}  // namespace

std::vector<StepOutput> traced_leaves(Problem& problem, const Batch& part, LeafCopies& copies) {
  require_dtype(problem);
  AtPrecision at_precision(problem.config().precision);
  const LeafTrace cut(part, copies.options());
  const std::int64_t batch = copies.next_batch();
  std::vector<StepOutput> outputs;
  for (std::size_t place = 0; place < copies.places(); ++place)
    outputs.push_back(
        leaf_output(problem, cut.leaves[place].batch, batch, place, at_precision, copies).output);
  return outputs;
}

TracedGradients leaf_gradients(Problem& problem, const std::vector<Batch>& parts,
                               const std::vector<Tensor>& wrt, optim::StateStore& state,
                               LeafCopies& copies) {
  require_dtype(problem);
  StepBuilder builder(rules_of(problem), state, problem.device());
  TracedGradients result;
  result.scale = builder.loss_scale();
  std::vector<LeafTrace> cut;
  std::vector<std::int64_t> numbers;
  for (const Batch& part : parts) {
    cut.emplace_back(part, copies.options());
    numbers.push_back(copies.next_batch());
  }
  std::vector<Tensor> losses;
  std::vector<Vectors> sums;
  std::map<std::string, std::vector<Tensor>> metrics;
  std::vector<std::vector<std::vector<Update>>> buffers(parts.size());
  for (std::size_t place = 0; place < copies.places(); ++place) {
    Tensor loss;
    Vectors gradients;
    std::map<std::string, Tensor> numbers_told;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      MicroBatch leaf = cut[p].leaves[place];
      leaf.share /= static_cast<double>(parts.size());
      LeafOutput own =
          leaf_output(problem, leaf.batch, numbers[p], place, builder.at_precision(), copies);
      const Tensor share = leaf.share_of(own.output.loss);
      loss = loss ? loss + share : share;
      for (const auto& [key, metric] : own.output.metrics) {
        const Tensor value = leaf.share_of(cast(metric, f64));
        Tensor& sum = numbers_told[key];
        sum = sum ? sum + value : value;
      }
      result.last = with_scale(share, result.scale);
      Vectors next = grad_where_reached(result.last, copies.at(place, wrt));
      for (std::size_t i = 0; i < next.size(); ++i) {
        if (!gradients.empty() && next[i]) next[i] = gradients[i] + next[i];
        mark_gradient(next[i]);
      }
      gradients = std::move(next);
      buffers[p].push_back(std::move(own.buffers));
    }
    losses.push_back(loss);
    sums.push_back(std::move(gradients));
    for (const auto& [key, value] : numbers_told) metrics[key].push_back(value);
  }
  result.loss = sum_over_leaves(losses, copies.options(), problem.name() + ".loss");
  std::vector<std::string> paths;
  for (const Tensor& variable : wrt) paths.push_back(variable.node()->path());
  result.gradients = leaf_sums(sums, copies, paths);
  for (const auto& [key, values] : metrics)
    result.metrics[key] = sum_over_leaves(values, copies.options(), problem.name() + "." + key);
  for (std::size_t i = 0; i < wrt.size(); ++i) {
    mark_gradient(result.gradients[i]);
    result.reached.push_back(static_cast<bool>(result.gradients[i]));
    if (!result.reached[i]) result.gradients[i] = zeros_like(wrt[i]);
  }
  result.buffers = chained(buffers, copies);
  return result;
}

Vectors leaf_sums(const std::vector<Vectors>& own, const LeafCopies& copies,
                  const std::vector<std::string>& paths) {
  Vectors totals;
  for (std::size_t i = 0; i < own.front().size(); ++i) {
    std::vector<Tensor> leaves;
    for (const Vectors& leaf : own) leaves.push_back(leaf[i]);
    totals.push_back(leaves.front() ? sum_over_leaves(leaves, copies.options(), paths[i])
                                    : Tensor{});
    mark_gradient(totals.back());
  }
  return totals;
}

}  // namespace ebb::mlo
