// Compares generation with a cache with a full pass over the sequence for every token, and with
// transformers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "ebb/ebb.h"
#include "ebb/generate/generator.h"
#include "ebb/io/hugging_face.h"
#include "ebb/models/gpt2.h"
#include "ebb/models/language_model.h"
#include "ebb/models/llama.h"
#include "ebb/nn/decode_scope.h"
#include "ebb/storage.h"
#include "ebb/threads.h"
#include "support/allocation_count.h"
#include "support/model_folders.h"
#include "support/op_check.h"
#include "support/other_device.h"

namespace ebb::test {
namespace {

using generate::Generator, generate::Request, generate::Result;
using Ids = std::vector<std::int32_t>;

constexpr models::Gpt2Config small_gpt2{
    .vocabulary = 131, .context = 48, .layers = 2, .heads = 3, .width = 39, .tied = false};
const models::LlamaConfig small_llama{.vocabulary = 97,
                                      .width = 48,
                                      .hidden = 70,
                                      .layers = 2,
                                      .heads = 6,
                                      .key_value_heads = 2,
                                      .context = 40,
                                      .head_size = 10};

// Weights large enough that the most likely tokens differ from place to place.
template <class Model>
void spread(Model& model) {
  for (const nn::NamedVariable& p : model.parameters()) {
    if (p.variable.rank() < 2) continue;
    const std::uint64_t seed = std::hash<std::string>{}(p.path);
    Variable(p.variable)
        .assign(eval(random_normal(p.variable.shape(), 0.0, 0.4, p.variable.dtype()), seed));
  }
}

// The token after `ids`, by a forward pass over all of them.
std::int32_t next_by_whole_pass(models::CausalLm& lm, const Ids& ids) {
  const std::int64_t length = static_cast<std::int64_t>(ids.size());
  const Tensor logits = lm.logits(Tensor::from(ids, {1, length}));
  return static_cast<std::int32_t>(
      argmax(slice(logits, 1, length - 1, length), 2).to_vector<std::int64_t>().front());
}

Ids by_whole_passes(models::CausalLm& lm, Ids ids, std::int64_t count) {
  const std::size_t first = ids.size();
  for (std::int64_t i = 0; i < count; ++i) ids.push_back(next_by_whole_pass(lm, ids));
  return {ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end()};
}

std::vector<Request> unequal_requests(std::int64_t vocabulary) {
  std::vector<Request> requests;
  for (const std::int64_t length : {1, 7, 3, 12, 5}) {
    Request request{.prompt = {}, .max_tokens = 4 + length % 5};
    for (std::int64_t i = 0; i < length; ++i)
      request.prompt.push_back(static_cast<std::int32_t>((i * i * 31 + length) % vocabulary));
    requests.push_back(std::move(request));
  }
  return requests;
}

template <class Model>
void expect_as_whole_passes(Model& model, const std::vector<generate::Options>& all) {
  const std::vector<Request> requests = unequal_requests(model.vocabulary());
  std::vector<Ids> expected;
  std::set<std::int32_t> distinct;
  for (const Request& request : requests) {
    expected.push_back(by_whole_passes(model, request.prompt, request.max_tokens));
    distinct.insert(expected.back().begin(), expected.back().end());
  }
  EXPECT_GT(distinct.size(), 3u);  // not the same token everywhere
  for (const generate::Options& options : all) {
    Generator generator(model, model, options);
    const std::vector<Result> results = generator.run(requests);
    for (std::size_t r = 0; r < requests.size(); ++r) {
      EXPECT_EQ(results[r].ids, expected[r])
          << "request " << r << " of " << options.sequences << " at a time";
      EXPECT_EQ(results[r].ended, generate::Ended::length);
    }
    EXPECT_EQ(generator.resident(), generator.footprint().peak);
  }
}

TEST(Generate, Gpt2GivesTheIdsOfWholePasses) {
  auto model = make<models::Gpt2>(device::cpu, f32, small_gpt2);
  spread(model);
  expect_as_whole_passes(model, {{.sequences = 1, .chunk = 4}, {.sequences = 3, .tokens = 21}});
}

TEST(Generate, LlamaWithGroupedHeadsGivesTheIdsOfWholePasses) {
  auto model = make<models::Llama>(device::cpu, f32, small_llama);
  spread(model);
  expect_as_whole_passes(model, {{.sequences = 2, .chunk = 5}, {.sequences = 8}});
}

TEST(Generate, TheSmallLanguageModelGivesTheIdsOfWholePasses) {
  auto model = make<models::LanguageModel>(
      device::cpu, f32,
      models::LanguageModelConfig{.vocabulary = 50, .layers = 2, .heads = 2, .head_size = 7});
  spread(model);
  expect_as_whole_passes(model, {{.sequences = 2, .chunk = 3}});
}

TEST(Generate, TransformersGivesTheSameIds) {
  const nlohmann::json golden = read_json(golden_models / "generated.json");
  for (const auto& [name, cases] : golden.items()) {
    const io::LoadedLm model = io::load_causal_lm(golden_models / name, device::cpu, f32);
    std::vector<Request> requests;
    for (const auto& each : cases)
      requests.push_back(
          {each["prompt"].get<Ids>(), static_cast<std::int64_t>(each["ids"].size())});
    Generator generator(*model.module, *model.lm, {.sequences = 3, .chunk = 4});
    const std::vector<Result> results = generator.run(requests);
    for (std::size_t i = 0; i < results.size(); ++i)
      EXPECT_EQ(results[i].ids, cases[i]["ids"].get<Ids>()) << name << ", prompt " << i;
  }
}

// Half types: the ids are those of the whole pass at the same precision, for a model whose logits
// are far apart.
TEST(Generate, HalfPrecisions) {
  for (const DType dtype : {f16, bf16}) {
    auto model = make<models::Llama>(device::cpu, dtype, small_llama);
    Generator generator(model, model, {.sequences = 2, .tokens = 24, .chunk = 8});
    const std::vector<Result> results = generator.run(unequal_requests(model.vocabulary()));
    for (const Result& result : results) EXPECT_FALSE(result.ids.empty());
    EXPECT_EQ(generator.resident(), generator.footprint().peak) << name(dtype);
  }
}

// Keys and values in 8 bits: about half of the bytes of bfloat16, the same ids for every number of
// sequences, and logits that differ only by the rounding of keys and values.
TEST(Generate, KeysAndValuesInEightBits) {
  const models::LlamaConfig config{.vocabulary = 300,
                                   .width = 128,
                                   .hidden = 160,
                                   .layers = 2,
                                   .heads = 4,
                                   .key_value_heads = 2,
                                   .context = 40,
                                   .head_size = 64};
  auto model = make<models::Llama>(device::cpu, bf16, config);
  spread(model);
  const auto requests = unequal_requests(model.vocabulary());
  generate::Options options{.sequences = 1, .chunk = 8};
  const Bytes wide = Generator(model, model, options).footprint().cache;
  options.cache = nn::CacheForm::int8;
  Generator alone(model, model, options);
  // 64 codes and a scale of 4 bytes for each head and position, instead of 128 bytes.
  EXPECT_EQ(alone.footprint().cache.count * 128, wide.count * 68);
  const std::vector<Result> expected = alone.run(requests);
  EXPECT_EQ(alone.resident(), alone.footprint().peak);
  options.sequences = 4, options.tokens = 30;
  Generator beside(model, model, options);
  const std::vector<Result> results = beside.run(requests);
  EXPECT_EQ(beside.resident(), beside.footprint().peak);
  for (std::size_t r = 0; r < requests.size(); ++r) EXPECT_EQ(results[r].ids, expected[r].ids);
}

// The last logits of a prompt that is read in two pieces over a cache.
std::vector<float> cached_logits(models::Gpt2& model, nn::CacheForm form) {
  const std::int64_t length = 20;
  nn::KeyValueCache cache(1, length, form);
  const nn::ForwardScope forward(nn::Mode::evaluate);
  const nn::DecodeScope scope(cache, unsqueeze(arange(length, i32), 0), zeros({1}, i32),
                              Tensor::from(std::vector<std::int32_t>{19}, {1}));
  Ids ids;
  for (std::int32_t i = 0; i < length; ++i) ids.push_back(i * 7 % 131);
  return eval(model.logits(Tensor::from(ids, {1, length}))).to_vector<float>();
}

TEST(Generate, LogitsOverACacheInEightBits) {
  auto model = make<models::Gpt2>(device::cpu, f32, small_gpt2);
  spread(model);
  const auto exact = cached_logits(model, nn::CacheForm::model),
             close = cached_logits(model, nn::CacheForm::int8);
  double error = 0.0, size = 0.0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    error += std::pow(static_cast<double>(close[i] - exact[i]), 2);
    size += std::pow(static_cast<double>(exact[i]), 2);
  }
  // A code is off by at most 1 / 254 of its block's largest value; scores of such large weights
  // make that several times as much.
  EXPECT_LT(std::sqrt(error / size), 0.1);
  EXPECT_GT(error, 0.0);
}

TEST(Generate, KeysAndValuesInEightBitsAreForTheCpu) {
  if (!built_with_cuda()) GTEST_SKIP() << "built without CUDA";
  auto model = make<models::Llama>(device::cuda(0), bf16, small_llama);
  expect_error([&] { Generator(model, model, {.cache = nn::CacheForm::int8}); },
               {"cached_attention_int8", "no kernel", "uint8", "cuda"});
}

// Without a GPU, only plans.
template <class Model, class Config>
void expect_on_cuda_as_on_cpu(const Config& config, DType dtype) {
  auto there = make<Model>(device::cuda(0), dtype, config);
  const generate::Options options{.sequences = 3, .chunk = 8};
  Generator generator(there, there, options);
  EXPECT_GT(generator.footprint().peak, generator.footprint().cache);
  if (!cuda_present()) return;
  auto here = make<Model>(device::cpu, dtype, config);
  spread(here);
  const auto from = here.parameters(), to = there.parameters();
  for (std::size_t i = 0; i < from.size(); ++i) {
    from[i].variable.materialise();
    Variable(to[i].variable).assign(from[i].variable);
  }
  const auto requests = unequal_requests(here.vocabulary());
  const auto results = generator.run(requests);
  EXPECT_EQ(generator.resident(), generator.footprint().peak);
  if (dtype != f32) return;  // roundings differ, and with them the most likely tokens
  const auto expected = Generator(here, here, options).run(requests);
  for (std::size_t r = 0; r < requests.size(); ++r) EXPECT_EQ(results[r].ids, expected[r].ids);
}

TEST(Generate, CudaGivesTheIdsOfTheCpu) {
  if (!built_with_cuda()) GTEST_SKIP() << "built without CUDA";
  const models::Gpt2Config gpt2{
      .vocabulary = 300, .context = 32, .layers = 2, .heads = 4, .width = 128, .tied = false};
  for (const DType dtype : {f32, bf16, f16}) {
    expect_on_cuda_as_on_cpu<models::Gpt2>(gpt2, dtype);
    expect_on_cuda_as_on_cpu<models::Llama>(small_llama, dtype);
  }
}

// A GPU multiplies up to eight rows in the same order as a single one, if rows are whole packs.
TEST(Generate, OnCudaIdsDoNotDependOnWhatRunsBeside) {
  if (!cuda_present()) GTEST_SKIP() << "no CUDA device";
  auto model = make<models::Gpt2>(
      device::cuda(0), bf16,
      models::Gpt2Config{.vocabulary = 304, .context = 32, .layers = 2, .heads = 4, .width = 128});
  generate::Options options{.sequences = 1, .chunk = 8};
  options.sampling = {.temperature = 0.9, .top_k = 40, .top_p = 0.95};
  const auto requests = unequal_requests(model.vocabulary());
  const auto alone = Generator(model, model, options).run(requests);
  options.sequences = 4;
  const auto beside = Generator(model, model, options).run(requests);
  for (std::size_t r = 0; r < requests.size(); ++r) EXPECT_EQ(beside[r].ids, alone[r].ids);
}

std::vector<Result> sampled(models::Gpt2& model, const generate::Options& options) {
  return Generator(model, model, options).run(unequal_requests(model.vocabulary()));
}

// On the CPU, rows of up to eight sequences are multiplied in the same order as a single one, if
// weights have at least 16384 elements (src/ops/matmul/few_rows.h).
TEST(Generate, SampledIdsDoNotDependOnWhatRunsBeside) {
  auto model = make<models::Gpt2>(
      device::cpu, f32,
      models::Gpt2Config{.vocabulary = 300, .context = 32, .layers = 1, .heads = 4, .width = 128});
  spread(model);
  generate::Options options{.sequences = 1, .chunk = 8};
  options.sampling = {.temperature = 0.9, .top_k = 40, .top_p = 0.95};
  options.seed = 11;
  const std::vector<Result> alone = sampled(model, options);
  for (const std::int64_t sequences : {2, 3, 8}) {
    generate::Options more = options;
    more.sequences = sequences, more.tokens = 28;
    const std::vector<Result> beside = sampled(model, more);
    for (std::size_t r = 0; r < alone.size(); ++r)
      EXPECT_EQ(beside[r].ids, alone[r].ids) << sequences << " sequences, request " << r;
  }
  options.seed = 12;
  bool differs = false;
  const std::vector<Result> other = sampled(model, options);
  for (std::size_t r = 0; r < alone.size(); ++r) differs |= other[r].ids != alone[r].ids;
  EXPECT_TRUE(differs);
}

// A layer with a sliding window, computed token by token over a cache and as a whole.
TEST(Generate, WindowsOverACacheAreThoseOfAWholePass) {
  const std::int64_t length = 9, window = 4;
  const Tensor q = eval(random_normal({1, 4, length, 6}, 0.0, 1.0, f64)),
               k = eval(random_normal({1, 2, length, 6}, 0.0, 1.0, f64)),
               v = eval(random_normal({1, 2, length, 6}, 0.0, 1.0, f64));
  const Tensor token = arange(length, i64);
  const Tensor near = greater(token, unsqueeze(token, -1) - static_cast<double>(window));
  const auto whole = contiguous(nn::self_attention(q, k, v, {.causal = true, .mask = near}, window))
                         .to_vector<double>();
  nn::KeyValueCache cache(1, length);
  const Tensor positions = arange(length, i32);
  const nn::DecodeScope scope(cache, unsqueeze(positions, 0), zeros({1}, i32));
  const auto cached =
      contiguous(nn::self_attention(q, k, v, {.causal = true}, window)).to_vector<double>();
  ASSERT_EQ(cached.size(), whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(cached[i], whole[i], 1e-13);
  expect_error([&] { nn::self_attention(q, k, v, {}, 0); }, {"causal"});
  expect_error([&] { nn::self_attention(q, k, v, {.causal = true, .mask = near}, 0); }, {"mask"});
}

TEST(Generate, SequencesEndByTokenAndByTheCaller) {
  auto model = make<models::Gpt2>(device::cpu, f32, small_gpt2);
  spread(model);
  const Request request{.prompt = {5, 9, 2}, .max_tokens = 20};
  const Ids all = Generator(model, model).run({&request, 1}).front().ids;
  ASSERT_EQ(all.size(), 20u);

  generate::Options options;
  options.end = {all[6]};
  const std::size_t first =
      static_cast<std::size_t>(std::find(all.begin(), all.end(), all[6]) - all.begin());
  const Result ended = Generator(model, model, options).run({&request, 1}).front();
  EXPECT_EQ(ended.ended, generate::Ended::token);
  EXPECT_EQ(ended.ids, Ids(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first) + 1));

  std::size_t calls = 0;
  const Result stopped =
      Generator(model, model)
          .run({&request, 1},
               [&](std::size_t number, std::span<const std::int32_t> ids) {
                 EXPECT_EQ(number, 0u);
                 EXPECT_EQ(ids.size(), ++calls);
                 return ids.size() < 4 ? generate::Continue::yes : generate::Continue::no;
               })
          .front();
  EXPECT_EQ(stopped.ended, generate::Ended::caller);
  EXPECT_EQ(stopped.ids.size(), 4u);

  options = {};
  options.tokens = 9;  // three of the prompt and six more
  EXPECT_EQ(Generator(model, model, options).run({&request, 1}).front().ids,
            Ids(all.begin(), all.begin() + 6));
}

TEST(Generate, AGeneratorRunsAgainWithTheSameResult) {
  auto model = make<models::Llama>(device::cpu, f32, small_llama);
  spread(model);
  Generator generator(model, model, {.sequences = 2});
  const auto requests = unequal_requests(model.vocabulary());
  const auto first = generator.run(requests), second = generator.run(requests);
  for (std::size_t r = 0; r < requests.size(); ++r) EXPECT_EQ(first[r].ids, second[r].ids);
}

TEST(Generate, FitFindsTheLargestNumberOfSequences) {
  auto model = make<models::Gpt2>(device::cpu, f32, small_gpt2);
  generate::Options options{.tokens = 48, .chunk = 16};
  const auto peak = [&](std::int64_t sequences) {
    generate::Options with = options;
    with.sequences = sequences;
    return Generator(model, model, with).footprint().peak;
  };
  EXPECT_EQ(generate::sequences_that_fit(model, model, options, peak(5), 100), 5);
  EXPECT_EQ(generate::sequences_that_fit(model, model, options, peak(5) - 1_B, 100), 4);
  EXPECT_EQ(generate::sequences_that_fit(model, model, options, peak(5), 3), 3);
  EXPECT_EQ(generate::sequences_that_fit(model, model, options, peak(1) - 1_B, 100), 0);
  options.sequences = 5, options.budget = peak(5) - 1_B;
  expect_error([&] { Generator(model, model, options); }, {"[generate]", "5 sequences", "budget"});
  EXPECT_EQ(live_bytes(), Bytes{});  // planning allocates nothing
}

TEST(Generate, Errors) {
  auto model = make<models::Gpt2>(device::cpu, f32, small_gpt2);
  const auto run = [&](Ids prompt, std::int64_t count, const generate::Options& options = {}) {
    const Request request{std::move(prompt), count};
    Generator(model, model, options).run({&request, 1});
  };
  expect_error([&] { run({}, 3); }, {"prompt 0", "no tokens"});
  expect_error([&] { run({1}, 0); }, {"max_tokens", "0"});
  expect_error([&] { run({1, 131}, 3); }, {"id 131", "131"});
  expect_error([&] { run({-1}, 3); }, {"id -1"});
  expect_error([&] { run(Ids(48, 1), 3); }, {"48 tokens"});
  expect_error([&] { run({1}, 3, {.tokens = 49}); }, {"context", "48", "49"});
  expect_error([&] { run({1}, 3, {.sequences = 0}); }, {"sequence", "0"});
  generate::Options options;
  options.sampling.temperature = -1.0;
  expect_error([&] { run({1}, 3, options); }, {"temperature"});
  options = {};
  options.end = {131};
  expect_error([&] { run({1}, 3, options); }, {"131"});
}

// In the suite of tests that run alone, since it counts allocations of the process.
TEST(SteadyState, GeneratingTokensAllocatesNothing) {
  auto model = make<models::Llama>(device::cpu, f32, small_llama);
  Generator generator(model, model, {.sequences = 2, .tokens = 40, .chunk = 8});
  const std::vector<Request> requests{{{1, 2, 3}, 30}, {{4}, 30}};
  std::int64_t before = 0, storages = 0;
  generator.run(requests, [&](std::size_t, std::span<const std::int32_t> ids) {
    if (ids.size() == 3) before = allocation_count(), storages = Storage::allocations();
    if (ids.size() == 29) {
      EXPECT_EQ(allocation_count(), before);
      EXPECT_EQ(Storage::allocations(), storages);
    }
    return generate::Continue::yes;
  });
  EXPECT_GT(before, 0);
}

}  // namespace
}  // namespace ebb::test
