#include "support/rank_training.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ebb/ebb.h"
#include "ebb/io/checkpoint.h"
#include "ebb/models/gpt2.h"
#include "ebb/models/llama.h"
#include "ebb/models/resnet.h"
#include "ebb/optim/by_name.h"
#include "ebb/train/eval_step.h"
#include "ops/collective/collective.h"
#include "support/op_check.h"
#include "support/plan_check.h"
#include "support/thread_ranks.h"

namespace ebb::test {
namespace {

constexpr std::int64_t length = 6, vocabulary = 53;  // no multiples of ranges

Tensor whole_numbers(std::uint64_t key, const Shape& shape, std::int64_t below) {
  return eval(
      cast(random_uniform(shape, 0.0, static_cast<double>(below), f32, device::cpu, RandomKey{key}),
           i64));
}

// The items of a rank's leaves.
Tensor own_part(const Tensor& batch, const RankOptions& options) {
  const LeafBlocks blocks = LeafBlocks::of(options);
  const std::int64_t size = batch.shape()[0] / blocks.leaves;
  std::vector<Tensor> leaves;
  for (std::int64_t place = 0; place < blocks.per_rank(); ++place) {
    const std::int64_t leaf = blocks.leaf(options.rank, place);
    leaves.push_back(slice(batch, 0, leaf * size, (leaf + 1) * size));
  }
  return eval(concat(leaves, 0));
}

Batch text(std::uint64_t key, std::int64_t items) {
  return {{whole_numbers(2 * key, {items, length}, vocabulary),
           whole_numbers(2 * key + 1, {items, length}, vocabulary)}};
}

Batch images(std::uint64_t key, std::int64_t items) {
  return {{eval(random_uniform({items, 3, 8, 8}, -1.0, 1.0, f32, device::cpu, RandomKey{2 * key})),
           whole_numbers(2 * key + 1, {items}, 10)}};
}

Bytes state_bytes(TrainStep& step) {
  Bytes total;
  for (const auto& [path, state] : step.optimizer_state().all()) total += state.type().bytes();
  return total;
}

template <class Model>
RankResult train_model(Model& model, const LossFunction& loss, const RankTraining& run,
                       Batch (*batch_of)(std::uint64_t, std::int64_t),
                       const std::shared_ptr<Communicator>& communicator) {
  TrainOptions options;
  options.ranks = {.leaves = run.leaves,
                   .count = run.ranks,
                   .rank = communicator ? communicator->rank() : 0,
                   .shard = run.shard};
  options.clip_norm = run.clip;
  options.precision = run.precision;
  options.activation_bits = run.activation_bits;
  options.compile.communicator = communicator;
  options.compile.plan.budget = run.budget;
  const auto own_batch = [&](std::uint64_t key) {
    Batch batch = batch_of(key, run.batch);
    for (Tensor& t : batch.tensors) t = own_part(t, options.ranks);
    return batch;
  };
  const std::vector<TensorType> types = own_batch(0).types();
  TrainStep step(model, optim::by_name(run.optimizer, 0.05), loss, options);
  if (!run.resume.empty()) io::load_checkpoint(run.resume, model, step);
  RankResult result;
  while (step.step() < run.steps)
    result.losses.push_back(step(own_batch(static_cast<std::uint64_t>(step.step()))).loss);
  if (!run.save.empty()) io::save_checkpoint(run.save, model, step);
  const Plan& plan = step.plan(types);
  check_plan(plan);
  result.peak = plan.peak, result.held = step.resident(types);
  for (const Instruction& i : plan.instructions)
    result.gathered_again += i.recomputed && i.op == &all_gather_op();
  result.state = result.kept = state_bytes(step);
  for (const nn::NamedVariable& p : step.weights()) result.kept += p.variable.type().bytes();
  CompileOptions beside = options.compile;
  beside.plan.budget.reset();
  beside.arena = step.arena();
  EvalStep test(
      model, [&](const Batch& b) { return std::vector{loss(b)}; }, beside,
      [&](const Graph& graph) { return step.gathered(graph); });
  result.test_loss = test(batch_of(99, 2)).front();
  io::gather_weights(model, step);
  for (const nn::NamedVariable& p : model.parameters())
    if (p.variable.has_value())
      for (const double value : values_of(p.variable)) result.weights.push_back(value);
  return result;
}

}  // namespace

RankResult train(const RankTraining& run, const std::shared_ptr<Communicator>& communicator) {
  const DType dtype = parameter_dtype(run.precision);
  if (run.model == "resnet") {
    auto model = make<models::ResNet>(
        device::cpu, dtype,
        models::ResNetConfig{.stages = {1, 1}, .widths = {4, 6}, .channels = 3, .classes = 10});
    return train_model(
        model,
        [&](const Batch& b) { return mean(cross_entropy(model(cast(b.x(), dtype)), b.y())); }, run,
        images, communicator);
  }
  if (run.model == "llama") {
    auto model = make<models::Llama>(device::cpu, dtype,
                                     models::LlamaConfig{.vocabulary = vocabulary,
                                                         .width = run.width,
                                                         .hidden = 3 * run.width,
                                                         .layers = 2,
                                                         .heads = 2,
                                                         .key_value_heads = 1,
                                                         .context = length});
    return train_model(
        model, [&](const Batch& b) { return model.loss(b.x(), b.y()); }, run, text, communicator);
  }
  auto model = make<models::Gpt2>(device::cpu, dtype,
                                  models::Gpt2Config{.vocabulary = vocabulary,
                                                     .context = length,
                                                     .layers = 1,
                                                     .heads = 2,
                                                     .width = run.width,
                                                     .dropout = run.dropout});
  return train_model(
      model, [&](const Batch& b) { return model.loss(b.x(), b.y()); }, run, text, communicator);
}

std::vector<RankResult> on_ranks(const RankTraining& run) {
  if (run.ranks == 1) return {train(run, nullptr)};
  return on_threads<RankResult>(run.ranks,
                                [&](const auto& communicator) { return train(run, communicator); });
}

void expect_same_bits(const RankTraining& run, const RankResult& alone) {
  SCOPED_TRACE(fmt::format("{}, {} ranks, {} leaves, shard {}, {}, {}", run.model, run.ranks,
                           run.leaves, static_cast<int>(run.shard), run.optimizer,
                           name(run.precision)));
  const std::vector<RankResult> results = on_ranks(run);
  EXPECT_EQ(results.front().weights, alone.weights);
  for (const RankResult& result : results) {
    EXPECT_EQ(result.losses, alone.losses);
    EXPECT_EQ(result.test_loss, alone.test_loss);
    EXPECT_EQ(result.held, result.peak);
    if (!result.weights.empty()) {
      EXPECT_EQ(result.weights, alone.weights);
    }
  }
}

}  // namespace ebb::test
