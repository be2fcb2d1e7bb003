// Adapters and weights in few bits on whole models. Golden values are PEFT's
// (tools/make_golden_adapters.py).
#include "ebb/io/adapter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include "ebb/nn/adapt.h"
#include "ebb/train/train_step.h"
#include "support/model_folders.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;

const fs::path golden_adapters = fs::path(EBB_GOLDEN_FOLDER) / "adapters";

const nlohmann::json& golden(const std::string& name) {
  static const nlohmann::json all = read_json(golden_adapters / "losses.json");
  return all.at(name);
}

io::ModelFolder adapted(const std::string& name, DType dtype) {
  io::ModelFolder folder = io::open_folder(golden_models / name, device::cpu, dtype);
  folder.load();
  io::load_adapter(golden_adapters / name, *folder.module);
  return folder;
}

TEST(Adapters, LossesAndGradientsAreThoseOfPeft) {
  for (const std::string name : {"gpt2", "llama"}) {
    const io::ModelFolder folder = adapted(name, f64);
    // transformers turns Llama's heads by angles rounded to float32.
    const double tolerance = name == "llama" ? 1e-7 : 1e-9;
    const Tensor loss = causal_loss_of(*folder.lm);
    EXPECT_NEAR(loss.item(), golden(name).at("losses")[0].get<double>(), tolerance) << name;
    const auto& norms = golden(name).at("gradient_norms");
    const std::vector<nn::NamedVariable> trained = folder.module->trainable_parameters();
    ASSERT_EQ(trained.size(), norms.size()) << name;
    for (const nn::NamedVariable& p : trained) {
      const Tensor gradient = grad(loss, {p.variable}).front();
      EXPECT_NEAR(sqrt(sum(gradient * gradient)).item(), norms.at(p.path).get<double>(), tolerance)
          << p.path;
    }
  }
}

TEST(Adapters, FiveStepsOfAdamWAreThoseOfPeft) {
  for (const std::string name : {"gpt2", "llama"}) {
    const io::ModelFolder folder = adapted(name, f32);
    folder.module->hold_in_evaluation();  // without the base's dropout
    TrainStep step(*folder.module, optim::Optimizer(optim::AdamW{.lr = 1e-2, .weight_decay = 0.1}),
                   [&](const Batch& b) { return folder.lm->loss(b.x(), b.y()); });
    const Batch batch{{eval(slice(tokens(), 1, 0, 11)), eval(slice(tokens(), 1, 1, 12))}};
    const auto& losses = golden(name).at("losses");
    // float32 keeps about seven digits.
    for (std::size_t i = 0; i < 5; ++i)
      EXPECT_NEAR(step(batch).loss, losses[i].get<double>(), 1e-5) << name << " step " << i;
    EXPECT_NEAR(causal_loss(*folder.lm), losses[5].get<double>(), 1e-5) << name;
    const io::SafetensorsFile after(golden_adapters / (name + "-after") /
                                    "adapter_model.safetensors");
    for (const nn::NamedVariable& p : folder.module->trainable_parameters()) {
      const Variable expected(zeros(p.variable.shape()));
      after.load("base_model.model." + p.path, expected);
      const auto a = p.variable.to_vector<float>(), b = expected.to_vector<float>();
      // Adam divides by the root of small gradients' squares, which magnifies their rounding.
      for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-4) << p.path;
    }
  }
}

TEST(Adapters, WrittenFoldersReadBackToTheBit) {
  for (const std::string name : {"gpt2", "llama"}) {
    const TemporaryFolder out;
    const io::ModelFolder folder = adapted(name, f32);
    io::save_adapter(*folder.module, out / "adapter", "a base");
    const io::SafetensorsFile before(golden_adapters / name / "adapter_model.safetensors"),
        after(out / "adapter" / "adapter_model.safetensors");
    ASSERT_EQ(before.entries().size(), after.entries().size());
    for (const auto& [tensor, entry] : before.entries())
      EXPECT_EQ(before.bytes(tensor), after.bytes(tensor)) << tensor;
    const auto was = read_json(golden_adapters / name / "adapter_config.json"),
               is = read_json(out / "adapter" / "adapter_config.json");
    for (const char* field : {"peft_type", "r", "lora_alpha", "lora_dropout", "fan_in_fan_out"})
      EXPECT_EQ(was.at(field), is.at(field)) << field;
    const std::set<std::string> modules = was.at("target_modules");
    EXPECT_EQ(is.at("target_modules").get<std::set<std::string>>(), modules);
    EXPECT_EQ(is.at("base_model_name_or_path"), "a base");
  }
}

TEST(Adapters, MergedFoldersGiveTheSameLoss) {
  for (const std::string name : {"gpt2", "llama"}) {
    const TemporaryFolder out;
    const io::ModelFolder folder = adapted(name, f64);
    folder.save(out / "merged");
    // The file holds the sum in float64.
    EXPECT_NEAR(folder_loss(out / "merged", f64), causal_loss(*folder.lm), 1e-12) << name;
    const io::SafetensorsFile before(golden_models / name / "model.safetensors"),
        after(out / "merged" / "model.safetensors");
    EXPECT_EQ(before.entries().size(), after.entries().size());
  }
}

// Only adapters have gradients and optimizer state. Activations that only gradients of frozen
// weights would read are not kept.
TEST(Adapters, ThePlannerSeesThatTheRestIsFrozen) {
  const models::LlamaConfig config{.vocabulary = 64,
                                   .width = 64,
                                   .hidden = 128,
                                   .layers = 4,
                                   .heads = 4,
                                   .key_value_heads = 4,
                                   .context = 32};
  const optim::Optimizer optimizer{optim::AdamW{}};
  const auto planned = [&](const std::optional<nn::AdaptOptions>& how, Bytes& state) {
    auto model = make<models::Llama>(device::cpu, f32, config);
    if (how) nn::adapt(model, *how);
    state = optim::state_bytes(optimizer, model.trainable_parameters());
    TrainStep step(model, optimizer, [&](const Batch& b) { return model.loss(b.x(), b.y()); });
    const TensorType ids{{2, 32}, i32};
    return step.plan({ids, ids});
  };
  Bytes full_state, state;
  const Plan full = planned({}, full_state);
  const nn::AdaptOptions all{.lora = nn::LoraOptions{.rank = 2}, .modules = {"q_proj", "v_proj"}};
  const Plan lora = planned(all, state);
  // Four layers with two adapters of rank 2, each from 64 to 64 numbers: two moments in float32.
  EXPECT_EQ(state, Bytes{4 * 2 * 2 * (64 + 64) * 4 * 2});
  // Each variable takes whole pages.
  EXPECT_EQ(lora.at_peak[Category::optimizer], Bytes{4 * 2 * 2 * 2 * 4096});
  EXPECT_LT(lora.at_peak[Category::gradients].count, full.at_peak[Category::gradients].count / 4);
  EXPECT_LT(lora.at_peak[Category::activations], full.at_peak[Category::activations]);
  // With adapters only in the last layer, nothing of the layers below is kept.
  nn::AdaptOptions last = all;
  last.modules = {"*.3.self_attn.q_proj"};
  const Plan top = planned(last, state);
  EXPECT_LT(2 * top.at_peak[Category::activations].count,
            lora.at_peak[Category::activations].count);
}

TEST(PackedWeights, AreReadFromFoldersAsIfQuantised) {
  for (const std::string name : {"gpt2", "llama"})
    for (const LowBits kind : {LowBits::int8, LowBits::int4, LowBits::nf4}) {
      io::ModelFolder plain = io::open_folder(golden_models / name, device::cpu, f32),
                      packed = io::open_folder(golden_models / name, device::cpu, f32),
                      later = io::open_folder(golden_models / name, device::cpu, f32);
      nn::adapt(*packed.module, {.base = kind});
      EXPECT_EQ(packed.module->parameter_count(), plain.module->parameter_count());
      EXPECT_TRUE(packed.module->trainable_parameters().empty());
      plain.load(), packed.load(), later.load();
      nn::adapt(*later.module, {.base = kind});  // packs weights that are there already
      const auto expected = later.module->parameters(), got = packed.module->parameters();
      ASSERT_EQ(expected.size(), got.size());
      int count = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        if (!got[i].packed) continue;
        ++count;
        expected[i].variable.materialise();
        EXPECT_EQ(got[i].variable.to_vector<std::uint8_t>(),
                  expected[i].variable.to_vector<std::uint8_t>())
            << got[i].path;
      }
      EXPECT_EQ(count, name == "gpt2" ? 2 * 4 : 2 * 7);
      // Random weights change little: eight bits change the loss in the fourth digit.
      EXPECT_NEAR(causal_loss(*packed.lm), causal_loss(*plain.lm),
                  kind == LowBits::int8 ? 2e-3 : 0.1)
          << name << " " << ebb::name(kind);
    }
}

TEST(PackedWeights, TrainWithAdaptersAndAreSavedMerged) {
  io::ModelFolder folder = io::open_folder(golden_models / "gpt2", device::cpu, f32);
  nn::adapt(*folder.module, {.base = LowBits::nf4,
                             .lora = nn::LoraOptions{.rank = 4, .alpha = 8.0, .dropout = 0.1}});
  folder.load();
  TrainStep step(*folder.module, optim::Optimizer(optim::AdamW{.lr = 5e-2}),
                 [&](const Batch& b) { return folder.lm->loss(b.x(), b.y()); });
  const Batch batch{{eval(slice(tokens(), 1, 0, 11)), eval(slice(tokens(), 1, 1, 12))}};
  const double before = step(batch).loss;
  double after = before;
  for (int i = 0; i < 40; ++i) after = step(batch).loss;
  EXPECT_LT(after, before - 0.2);
  const TemporaryFolder out;
  folder.save(out / "merged");
  EXPECT_NEAR(folder_loss(out / "merged", f32), causal_loss(*folder.lm), 1e-5);
}

TEST(PackedWeights, ABudgetChangesNoBit) {
  const models::LlamaConfig config{.vocabulary = 64,
                                   .width = 64,
                                   .hidden = 128,
                                   .layers = 4,
                                   .heads = 4,
                                   .key_value_heads = 2,
                                   .context = 32};
  Bytes peak;
  int recomputed = 0;
  const auto losses = [&](std::optional<Bytes> budget) {
    auto model = make<models::Llama>(device::cpu, f32, config);
    nn::adapt(model, {.base = LowBits::int4,
                      .lora = nn::LoraOptions{.rank = 4, .alpha = 8.0, .dropout = 0.2}});
    TrainOptions options;
    options.compile.plan.budget = budget;
    TrainStep step(
        model, optim::Optimizer(optim::AdamW{.lr = 1e-2}),
        [&](const Batch& b) { return model.loss(b.x(), b.y()); }, options);
    std::vector<std::int32_t> ids;
    for (std::int32_t i = 0; i < 4 * 33; ++i) ids.push_back(i * i % 61);
    const Tensor all = Tensor::from(ids, {4, 33});
    const Batch batch{{eval(slice(all, 1, 0, 32)), eval(slice(all, 1, 1, 33))}};
    peak = step.plan(batch.types()).peak;
    recomputed = static_cast<int>(step.plan(batch.types()).recomputed_nodes());
    std::vector<double> result;
    for (int i = 0; i < 3; ++i) result.push_back(step(batch).loss);
    return result;
  };
  const std::vector<double> free = losses({});
  const Bytes budget{peak.count * 7 / 8};
  EXPECT_EQ(losses(budget), free);
  EXPECT_GT(recomputed, 0);
  EXPECT_LE(peak, budget);
}

TEST(PackedWeights, OfRandomModelsAreComputedInPlace) {
  auto model = make<models::Llama>(device::cpu, f32,
                                   models::LlamaConfig{.vocabulary = 61,
                                                       .width = 16,
                                                       .hidden = 24,
                                                       .layers = 1,
                                                       .heads = 2,
                                                       .key_value_heads = 1,
                                                       .context = 16});
  auto plain = make<models::Llama>(device::cpu, f32, model.config());
  nn::adapt(model, {.base = LowBits::int8});
  EXPECT_NEAR(causal_loss(model), causal_loss(plain), 1e-3);
}

TEST(PackedWeights, ValuesThatAreNotFiniteAreRefused) {
  FolderCopy copy("llama");
  copy.change_tensors([](FolderCopy::Tensors& all) {
    Tensor& t = all.at("model.layers.0.mlp.up_proj.weight");
    t = eval(t / 0.0);
  });
  io::ModelFolder folder = io::open_folder(copy.path(), device::cpu, f32);
  nn::adapt(*folder.module, {.base = LowBits::int4});
  expect_error([&] { folder.load(); }, {"model.layers.0.mlp.up_proj.weight", "int4", "NaN"});
}

TEST(Adapt, Patterns) {
  EXPECT_TRUE(nn::matches("*.q_proj", "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(nn::matches("q_proj", "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(nn::matches("self_attn.q_proj", "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(nn::matches("*.1*.q_proj", "model.layers.12.self_attn.q_proj"));
  EXPECT_TRUE(nn::matches("**", "x"));
  EXPECT_FALSE(nn::matches("proj", "model.q_proj"));
  EXPECT_FALSE(nn::matches("*.q_proj", "q_proj"));
  EXPECT_FALSE(nn::matches("*.q", "a.q_proj"));
  EXPECT_FALSE(nn::matches("", "a"));
}

TEST(Adapt, Errors) {
  io::ModelFolder folder = io::open_folder(golden_models / "llama", device::cpu, f32);
  nn::ModuleBase& model = *folder.module;
  const nn::LoraOptions lora{.rank = 2};
  expect_error([&] { nn::adapt(model, {.lora = lora, .modules = {"c_attn"}}); },
               {"\"c_attn\"", "q_proj", "down_proj"});
  expect_error([&] { nn::adapt(model, {.lora = lora, .modules = {"lm_head"}}); }, {"lm_head"});
  expect_error([&] { nn::adapt(model, {.modules = {"q_proj"}}); }, {"rank"});
  expect_error([&] { nn::adapt(model, {.lora = nn::LoraOptions{.rank = 0}}); }, {"rank", "0"});
  expect_error(
      [&] { nn::adapt(model, {.lora = nn::LoraOptions{.rank = 1, .alpha = 1, .dropout = 1.0}}); },
      {"dropout", "1"});
  expect_error([&] { io::save_adapter(model, "nowhere", ""); }, {"no adapters"});
  io::load_adapter(golden_adapters / "llama", model);
  expect_error([&] { io::load_adapter(golden_adapters / "llama", model); }, {"already"});
}

// A folder of an adapter that a test may change.
class AdapterCopy {
 public:
  AdapterCopy() { fs::copy(golden_adapters / "llama", path(), fs::copy_options::recursive); }
  fs::path path() const { return folder_ / "adapter"; }
  AdapterCopy& set(const char* field, const nlohmann::json& value) {
    nlohmann::json config = read_json(path() / "adapter_config.json");
    config[field] = value;
    std::ofstream(path() / "adapter_config.json") << config;
    return *this;
  }
  void refused(const std::vector<std::string>& parts) const {
    io::ModelFolder folder = io::open_folder(golden_models / "llama", device::cpu, f32);
    expect_error([&] { io::load_adapter(path(), *folder.module); }, parts);
    EXPECT_TRUE(nn::adapted_layers(*folder.module).empty());
  }

 private:
  TemporaryFolder folder_;
};

TEST(Adapters, WhatIsNotSupportedIsRefusedByField) {
  AdapterCopy().set("peft_type", "IA3").refused({"peft_type", "IA3"});
  AdapterCopy().set("use_dora", true).refused({"use_dora"});
  AdapterCopy().set("bias", "all").refused({"bias", "all"});
  AdapterCopy().set("modules_to_save", {"lm_head"}).refused({"modules_to_save"});
  AdapterCopy().set("rank_pattern", {{"q_proj", 2}}).refused({"rank_pattern"});
  for (const char* start : {"pissa", "pissa_niter_4", "olora", "loftq", "corda", "lora_ga"})
    AdapterCopy().set("init_lora_weights", start).refused({"init_lora_weights", start});
  AdapterCopy().set("r", 5).refused({"lora_A.weight", "(4, 16)", "(5, 16)"});
  AdapterCopy().set("r", -1).refused({"\"r\""});
  AdapterCopy().set("a_new_field", 1).refused({"a_new_field"});
  const AdapterCopy copy;
  const Tensor value = eval(zeros({4, 16}));
  const auto with = [&](const char* name) {
    io::write_safetensors(copy.path() / "adapter_model.safetensors", {{name, value}});
  };
  with("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
  copy.refused({"no partner", "lora_B"});
  with("base_model.model.lm_head.lora_A.weight");
  copy.refused({"lm_head", "no linear layer"});
  with("base_model.model.lora_A.weight");
  copy.refused({"lora_A"});
  with("something.else");
  copy.refused({"something.else", "form"});
}

// The adapters have transformers' names, where these differ from the parameters'.
TEST(Adapters, HaveTheNamesOfTheFamily) {
  const TemporaryFolder place;
  const fs::path families = fs::path(EBB_GOLDEN_FOLDER) / "families";
  struct Row {
    std::string model, layer, written, target;
  };
  for (const Row& row :
       {Row{"distilbert", "query", "distilbert.transformer.layer.1.attention.q_lin", "q_lin"},
        Row{"distilbert", "bert.pooler.dense", "pre_classifier", "pre_classifier"},
        Row{"roberta", "value", "roberta.encoder.layer.0.attention.self.value", "value"},
        Row{"gpt_neox", "up_proj", "gpt_neox.layers.1.mlp.dense_h_to_4h", "dense_h_to_4h"},
        Row{"qwen3", "q_proj", "model.layers.1.self_attn.q_proj", "q_proj"}}) {
    io::ModelFolder folder = io::open_folder(families / row.model, device::cpu, f32);
    folder.load();
    nn::adapt(*folder.module,
              {.lora = nn::LoraOptions{.rank = 2, .alpha = 5.0}, .modules = {row.layer}});
    const fs::path to = place / row.model;
    io::save_adapter(*folder.module, to, "base");
    const io::SafetensorsFile file(to / "adapter_model.safetensors");
    EXPECT_TRUE(file.entries().contains("base_model.model." + row.written + ".lora_A.weight"))
        << row.model << " has " << file.entries().begin()->first;
    EXPECT_EQ(read_json(to / "adapter_config.json").at("target_modules"),
              nlohmann::json({row.target}));
    io::ModelFolder again = io::open_folder(families / row.model, device::cpu, f32);
    again.load();
    io::load_adapter(to, *again.module);
    EXPECT_EQ(nn::adapted_layers(*again.module).size(), nn::adapted_layers(*folder.module).size());
  }
}

// Refused before training, because a folder of adapters could not hold everything that the result
// needs.
TEST(Adapters, WhatTheFormatCannotHoldIsRefused) {
  const fs::path families = fs::path(EBB_GOLDEN_FOLDER) / "families";
  const auto with_adapters = [&](const char* model, const char* layer, io::EncoderHead head) {
    io::ModelFolder folder = io::open_folder(families / model, device::cpu, f32, head);
    nn::adapt(*folder.module, {.lora = nn::LoraOptions{.rank = 2}, .modules = {layer}});
    io::check_adapters(*folder.module);
  };
  with_adapters("roberta", "query", io::EncoderHead::classifier);
  with_adapters("gpt_neox", "up_proj", io::EncoderHead::classifier);
  expect_error([&] { with_adapters("gpt_neox", "q_proj", io::EncoderHead::classifier); },
               {"q_proj", "query_key_value", "--merge"});
  expect_error([&] { with_adapters("roberta", "query", io::EncoderHead::masked_lm); },
               {"cls.predictions", "random", "--merge"});
}

// Rank-stabilised adapters count alpha / √rank times.
TEST(Adapters, RankStabilisedScale) {
  AdapterCopy copy;
  io::ModelFolder usual = io::open_folder(golden_models / "llama", device::cpu, f32),
                  stable = io::open_folder(golden_models / "llama", device::cpu, f32);
  usual.load(), stable.load();
  copy.set("lora_alpha", 6.0 * 2.0);  // times √4
  io::load_adapter(copy.path(), *usual.module);
  copy.set("lora_alpha", 6.0).set("use_rslora", true);
  io::load_adapter(copy.path(), *stable.module);
  EXPECT_EQ(causal_loss(*usual.lm), causal_loss(*stable.lm));
}

}  // namespace
}  // namespace ebb::test
