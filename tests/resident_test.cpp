// Steps of generation whose instructions run in one resident kernel, compared with the same
// instructions launched one by one: everything they write has the same bits.
#include <gtest/gtest.h>

#include <algorithm>

#include "ebb/ebb.h"
#include "ebb/models/gpt2.h"
#include "ebb/models/llama.h"
#include "ebb/nn/decode_scope.h"
#include "ebb/storage.h"
#include "generate/graphs.h"
#include "support/other_device.h"

namespace ebb::test {
namespace {

using generate::GenerationState;

template <class T>
void write(const Variable& to, const std::vector<T>& values) {
  to.node()->storage()->write(std::as_bytes(std::span(values)));
}

std::vector<std::byte> bytes_of(const Tensor& variable) {
  const auto& storage = variable.node()->storage();
  std::vector<std::byte> bytes(static_cast<std::size_t>(storage->size().count));
  storage->read(bytes);
  return bytes;
}

// Everything that the step has written after some tokens of sequences that begin at these
// positions; -1 is a row without a sequence.
template <class Model>
std::vector<std::vector<std::byte>> written(Model& model, const std::vector<std::int32_t>& begin,
                                            std::int64_t context, bool one_by_one) {
  const auto sequences = static_cast<std::int64_t>(begin.size());
  nn::KeyValueCache cache(sequences, context);
  const GenerationState state(sequences, device::cuda(0));
  const Graph graph = generate::decode_step(model, cache, state, {});
  Program program(graph);
  std::vector<std::int32_t> ids;
  for (std::int64_t s = 0; s < sequences; ++s) ids.push_back(static_cast<std::int32_t>(7 * s + 3));
  write(state.ids, ids), write(state.positions, begin);
  for (int token = 0; token < 6; ++token) {
    if (one_by_one)
      program.timed_run();
    else
      program.run();
  }
  std::vector<std::vector<std::byte>> all;
  for (const auto& [variable, value] : graph.updates) all.push_back(bytes_of(variable));
  return all;
}

template <class Model>
void spread(Model& model) {
  std::uint64_t seed = 1;
  for (const nn::NamedVariable& p : model.parameters())
    Variable(p.variable)
        .assign(eval(random_normal(p.variable.shape(), p.variable.rank() < 2 ? 0.5 : 0.0, 0.2,
                                   p.variable.dtype(), device::cuda(0)),
                     seed++));
}

template <class Model, class Config>
void expect_same_bits(const Config& config, std::int64_t context) {
  for (const DType dtype : {bf16, f16}) {
    auto model = make<Model>(device::cuda(0), dtype, config);
    spread(model);
    // One sequence runs in the resident kernel, and ends on both sides of a piece's end; three are
    // launched one by one in both runs.
    const auto last = static_cast<std::int32_t>(context - 8);
    using Positions = std::vector<std::int32_t>;
    for (const Positions& begin : std::vector<Positions>{{125}, {0}, {-1}, {125, -1, 247 % last}}) {
      const auto joined = written(model, begin, context, false),
                 separate = written(model, begin, context, true);
      ASSERT_EQ(joined.size(), separate.size());
      for (std::size_t i = 0; i < joined.size(); ++i)
        EXPECT_EQ(joined[i], separate[i])
            << "update " << i << " with " << begin.size() << " sequences from " << begin[0]
            << " in " << name(dtype);
    }
  }
}

TEST(Resident, Gpt2) {
  if (!cuda_present()) GTEST_SKIP() << "no CUDA device";
  // A width whose rows are not whole parts of the stream, and one for which a norm uses a whole
  // block.
  for (const auto& [width, heads] : {std::pair{264, 3}, {1600, 25}, {2304, 9}})
    expect_same_bits<models::Gpt2>(
        models::Gpt2Config{
            .vocabulary = 1003, .context = 300, .layers = 2, .heads = heads, .width = width},
        300);
}

// More tasks than fit into the argument of one kernel.
TEST(Resident, ManyLayers) {
  if (!cuda_present()) GTEST_SKIP() << "no CUDA device";
  expect_same_bits<models::Gpt2>(
      models::Gpt2Config{.vocabulary = 512, .context = 200, .layers = 48, .heads = 4, .width = 128},
      200);
}

TEST(Resident, LlamaWithGroupedHeads) {
  if (!cuda_present()) GTEST_SKIP() << "no CUDA device";
  models::LlamaConfig config{.vocabulary = 1000,
                             .width = 512,
                             .hidden = 1408,
                             .layers = 2,
                             .heads = 12,
                             .key_value_heads = 2,
                             .context = 300,
                             .head_size = 128};
  expect_same_bits<models::Llama>(config, 300);
  config.head_norms = true;  // Qwen3
  config.window = 100;       // Mistral
  expect_same_bits<models::Llama>(config, 300);
}

TEST(Resident, LlamaWithLayerNormsInParallel) {
  if (!cuda_present()) GTEST_SKIP() << "no CUDA device";
  expect_same_bits<models::Llama>(models::LlamaConfig{.vocabulary = 1000,
                                                      .width = 256,
                                                      .hidden = 1024,
                                                      .layers = 2,
                                                      .heads = 4,
                                                      .key_value_heads = 4,
                                                      .context = 200,
                                                      .attention_bias = true,
                                                      .mlp_bias = true,
                                                      .rotary_size = 16,
                                                      .layer_norms = true,
                                                      .parallel = true,
                                                      .gated = false},
                                  200);
}

}  // namespace
}  // namespace ebb::test
