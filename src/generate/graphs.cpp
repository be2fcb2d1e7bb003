#include "generate/graphs.h"

#include "ebb/error.h"
#include "ebb/nn/module.h"
#include "ebb/ops.h"

namespace ebb::generate {
namespace {

// The next token of each sequence of a call, (B). `at`: the position of the last known one, (B).
Tensor next_token(models::CausalLm& lm, const Tensor& ids, const Tensor& keys, const Tensor& at,
                  const SampleOptions& sampling) {
  const Tensor logits = lm.logits(ids);  // (B, 1, vocabulary)
  if (nn::DecodeScope::current()->layers() == 0)
    throw ValueError(
        "[generate] the model has no attention that can use a cache (nn::self_attention)");
  return sample_token(reshape(logits, {ids.shape()[0], lm.vocabulary()}), keys, at, sampling);
}

}  // namespace

GenerationState::GenerationState(std::int64_t sequences, Device device)
    : ids(zeros({sequences}, i32, device), Category::inputs),
      positions(full({sequences}, -1.0, i32, device), Category::inputs),
      keys(zeros({sequences}, i64, device), Category::inputs),
      first(zeros({1}, i32, device), Category::inputs) {}

Graph decode_step(models::CausalLm& lm, nn::KeyValueCache& cache, const GenerationState& state,
                  const SampleOptions& sampling) {
  const TraceScope fresh;
  const nn::ForwardScope forward(nn::Mode::evaluate);
  const Tensor rows = arange(cache.rows(), i32, state.ids.device());
  const nn::DecodeScope scope(cache, unsqueeze(state.positions, 1), rows);
  const Tensor next =
      next_token(lm, unsqueeze(state.ids, 1), state.keys, state.positions, sampling);
  const Tensor runs = greater_equal(state.positions, scalar_like(state.positions, 0.0));
  Graph graph{.inputs = {}, .outputs = {}, .updates = scope.updates()};
  graph.updates.push_back({state.ids, next});
  graph.updates.push_back(
      {state.positions,
       where(runs, state.positions + scalar_like(state.positions, 1.0), state.positions)});
  return graph;
}

Graph prefill_step(models::CausalLm& lm, nn::KeyValueCache& cache, const GenerationState& state,
                   std::int64_t chunk, const SampleOptions& sampling, Device device) {
  const TraceScope fresh;
  const nn::ForwardScope forward(nn::Mode::evaluate);
  const Tensor ids = input({{1, chunk}, i32}, "ids", device),
               positions = input({{1, chunk}, i32}, "positions", device),
               row = input({{1}, i32}, "row", device), last = input({{1}, i32}, "last", device),
               key = input({{1}, i64}, "key", device);
  const nn::DecodeScope scope(cache, positions, row, last);
  const Tensor at = reshape(gather(positions, 1, unsqueeze(last, 0)), {1});
  const Tensor next = next_token(lm, ids, key, at, sampling);
  Graph graph{
      .inputs = {ids, positions, row, last, key}, .outputs = {}, .updates = scope.updates()};
  graph.updates.push_back({state.first, next});
  return graph;
}

}  // namespace ebb::generate
