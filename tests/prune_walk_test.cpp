// Blocks that are pruned one after another, from one folder to another: the same bits as with the
// whole model in memory, for any budget.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ebb/ebb.h"
#include "ebb/io/hugging_face.h"
#include "ebb/nn/adapt.h"
#include "ebb/prune/gptq.h"
#include "ebb/prune/weights.h"
#include "ebb/train/eval_step.h"
#include "io/hugging_face/packed.h"
#include "support/command_line.h"
#include "support/model_folders.h"
#include "support/sanitizers.h"
#include "support/temporary_folder.h"
#include "support/text_file.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using prune::Method;

const prune::Sparsity two_of_four{.pattern = Pattern{2, 4}};

// Four windows of 16 tokens, two at a time, as `--samples 4 --batch 2` takes them.
std::vector<Batch> windows(std::int64_t vocabulary) {
  std::vector<Batch> batches;
  for (std::int64_t n = 0; n < 2; ++n) {
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < 34; ++i)
      ids.push_back(static_cast<std::int32_t>((i * i * 3 + n * 11 + i) % vocabulary));
    const Tensor all = Tensor::from(ids, {2, 17});
    batches.push_back({{eval(slice(all, 1, 0, 16)), eval(slice(all, 1, 1, 17))}});
  }
  return batches;
}

struct Loaded {
  io::LoadedLm model = io::load_causal_lm(golden_models / "llama", device::cpu, f32);
  LossFunction loss = [this](const Batch& b) { return model.lm->loss(b.x(), b.y()); };
  std::vector<Batch> batches = windows(model.lm->vocabulary());

  prune::PrunedWeights prune(Method method, const prune::WalkOptions& walk) {
    return prune::prune_weights(*model.module, loss, batches, batches.front().types(), method,
                                two_of_four, {}, walk);
  }
  double mean_loss() {
    EvalStep step(*model.module, [&](const Batch& b) { return std::vector{loss(b)}; });
    double total = 0.0;
    for (const Batch& b : batches) total += step(b).front();
    return total / static_cast<double>(batches.size());
  }
  std::vector<float> weights() const {
    std::vector<float> all;
    for (const nn::NamedVariable& p : model.module->parameters()) {
      const auto own = p.variable.to_vector<float>();
      all.insert(all.end(), own.begin(), own.end());
    }
    return all;
  }
};

TEST(PruneWalk, BudgetsChangeNoBit) {
  const TemporaryFolder folder;
  Loaded plain;
  const double dense = plain.mean_loss();
  const auto free = plain.prune(Method::sparsegpt, {.losses = true}).walk;
  EXPECT_FALSE(free.values_in_file || free.one_input_at_a_time);
  // Programs of single blocks compute the same as the program of the whole model.
  EXPECT_EQ(free.loss_before, dense);
  EXPECT_EQ(free.loss_after, plain.mean_loss());
  prune::WalkReport last = free;
  int choices = 0;
  for (std::optional<Bytes> budget = free.planned - 1_B;; budget = last.planned - 1_B) {
    Loaded tight;
    try {
      last =
          tight
              .prune(Method::sparsegpt, {.budget = budget, .folder = folder.path(), .losses = true})
              .walk;
    } catch (const MemoryError& error) {
      EXPECT_NE(std::string(error.what()).find("cannot be kept"), std::string::npos);
      break;
    }
    ++choices;
    EXPECT_LE(last.planned, *budget);
    EXPECT_EQ(tight.weights(), plain.weights());
    EXPECT_EQ(last.loss_before, free.loss_before);
    EXPECT_EQ(last.loss_after, free.loss_after);
  }
  EXPECT_GE(choices, 2);
  EXPECT_TRUE(last.values_in_file);
  EXPECT_TRUE(fs::is_empty(folder.path()));  // the file has no name
}

// Every family from folder to folder, compared with the whole model in memory.
TEST(PruneWalk, FoldersAreThoseOfModelsInMemory) {
  const fs::path families = golden_models / "../families";
  for (const fs::path& from : {golden_models / "gpt2", golden_models / "llama",
                               families / "gpt_neox", families / "qwen3"}) {
    const TemporaryFolder folder;
    const auto made = io::load_causal_lm(from, device::cpu, f32);
    const Outcome outcome =
        run("prune --model " + from.string() + " --pattern 2:4 --method magnitude --save " +
            (folder / "streamed").string());
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    const TensorType ids{{1, 8}, i32};
    prune::prune_weights(
        *made.module, [&](const Batch& b) { return made.lm->loss(b.x(), b.y()); }, {}, {ids, ids},
        Method::magnitude, two_of_four);
    if (const auto* gpt2 = dynamic_cast<const models::Gpt2*>(made.module.get()))
      io::save(*gpt2, folder / "whole");
    else
      io::save(dynamic_cast<const models::Llama&>(*made.module), folder / "whole");
    for (const char* file : {"model.safetensors", "config.json"})
      EXPECT_EQ(contents(folder / "streamed" / file), contents(folder / "whole" / file)) << from;
  }
}

TEST(PruneWalk, EncodersHaveTheirSecondNames) {
  const fs::path from = golden_models / "../families/bert_masked";
  const TemporaryFolder folder;
  const Outcome outcome = run("prune --model " + from.string() + " --sparsity 0.25 --save " +
                              (folder / "streamed").string());
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const auto model = io::load_bert_masked_lm(from, device::cpu, f32);
  const TensorType ids{{1, 8}, i32};
  prune::prune_weights(*model, [&](const Batch& b) { return mean((*model)(b.x())); }, {},
                       {ids, ids}, Method::magnitude, {.share = 0.25});
  io::save(*model, folder / "whole");
  EXPECT_EQ(contents(folder / "streamed" / "model.safetensors"),
            contents(folder / "whole" / "model.safetensors"));
}

TEST(PruneWalk, GptqPacksFromFolderToFolder) {
  const std::string tokens = (golden_models / "tokens.bin").string();
  for (const char* name : {"gpt2", "llama"}) {
    const TemporaryFolder folder;
    const std::string from = (golden_models / name).string();
    const Outcome streamed = run("prune --model " + from + " --bits int4 --data " + tokens +
                                 " --json --save " + (folder / "streamed").string());
    ASSERT_EQ(streamed.code, 0) << streamed.output;
    const auto result = nlohmann::json::parse(streamed.output);
    EXPECT_EQ(result.at("method"), "gptq");
    EXPECT_LT(result.at("bytes").at("after"), result.at("bytes").at("before"));
    const Outcome whole = run("eval --model " + from + " --base int4 --calibrate " + tokens +
                              " --tokens " + tokens + " --save " + (folder / "whole").string());
    ASSERT_EQ(whole.code, 0) << whole.output;
    for (const char* file : {"model.safetensors", "config.json"})
      EXPECT_EQ(contents(folder / "streamed" / file), contents(folder / "whole" / file)) << name;
  }
}

TEST(PruneWalk, BadInput) {
  const TemporaryFolder folder;
  const std::string gpt2 = "prune --model " + (golden_models / "gpt2").string() + " --save " +
                           (folder / "made").string(),
                    data = " --data " + (golden_models / "tokens.bin").string();
  expect_usage_error(gpt2 + " --keep 0.5 --budget 1GiB", "--budget is for --sparsity");
  expect_usage_error(gpt2 + " --bits int4", "--bits needs text");
  expect_usage_error(gpt2 + " --bits int3" + data, "int3");
  expect_usage_error(gpt2 + " --bits int4 --method wanda" + data, "--bits uses GPTQ");
  expect_usage_error(gpt2 + " --bits int4 --sparsity 0.5" + data, "one of --keep");
  expect_usage_error(gpt2 + " --sparsity 0.5 --budget much", "much");
  expect_failure(gpt2 + " --sparsity 0.5 --budget 2MiB", 1, "cannot be kept");
  EXPECT_FALSE(fs::exists(folder / "made"));
}

// A model that is larger than the budget of the whole process: the operating system's own figure
// stays below the budget, and the bits are those of a run without one.
TEST(PruneWalk, LargerModelsThanTheBudget) {
  if (sanitized) GTEST_SKIP() << "a sanitizer takes memory of its own";
  const TemporaryFolder folder;
  models::LlamaConfig config;
  config.vocabulary = 61, config.width = 384, config.hidden = 1024, config.layers = 20;
  config.heads = config.key_value_heads = 6, config.context = 32;
  io::save(make<models::Llama>(device::cpu, f32, config), folder / "dense");
  const std::string options = "prune --model " + (folder / "dense").string() +
                              " --pattern 2:4 --method sparsegpt --samples 4 --batch 2 --data " +
                              (golden_models / "tokens.bin").string() + " --threads 1 --json ";
  const Outcome free = run(options + "--save " + (folder / "free").string());
  ASSERT_EQ(free.code, 0) << free.output;
  const auto weights = fs::file_size(folder / "dense" / "model.safetensors");
  const Outcome tight = run(options + "--budget 112MiB --save " + (folder / "tight").string());
  ASSERT_EQ(tight.code, 0) << tight.output;
  const auto result = nlohmann::json::parse(tight.output);
  EXPECT_GT(weights, result.at("budget_bytes").get<std::uint64_t>());
  EXPECT_LE(result.at("planned_peak_bytes"), result.at("budget_bytes"));
  EXPECT_LE(result.at("process_peak_bytes"), result.at("planned_peak_bytes"));
  EXPECT_EQ(result.at("loss"), nlohmann::json::parse(free.output).at("loss"));
  EXPECT_TRUE(contents(folder / "free" / "model.safetensors") ==
              contents(folder / "tight" / "model.safetensors"));
}

}  // namespace
}  // namespace ebb::test
