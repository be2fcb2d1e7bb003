// Folders made by transformers (tools/make_model_folders.py) give its losses, and what ebb writes
// it reads again.
#include "ebb/io/hugging_face.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ebb/ebb.h"
#include "ebb/io/safetensors.h"
#include "support/op_check.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;

const fs::path models = fs::path(EBB_GOLDEN_FOLDER) / "models";

double golden_loss(const char* name) {
  std::ifstream file(models / "losses.json");
  return nlohmann::json::parse(file).at(name).get<double>();
}

// The two rows of twelve tokens that the golden losses are of.
Tensor tokens() {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < 24; ++i) ids.push_back((7 * i * i + 3 * i) % 61);
  return Tensor::from(ids, {2, 12});
}

double causal_loss(models::CausalLm& model) {
  return model.loss(slice(tokens(), 1, 0, 11), slice(tokens(), 1, 1, 12)).item();
}

double bert_loss(models::BertClassifier& model) {
  std::vector<std::uint8_t> seen(24, 1);
  for (std::size_t i = 12 + 9; i < 24; ++i) seen[i] = 0;
  const Tensor mask = cast(Tensor::from(seen, {2, 12}), b8);
  return model.loss(tokens(), Tensor::from(std::vector<std::int64_t>{2, 0}, {2}), mask).item();
}

// float32 keeps about seven digits, and a loss is a sum of thousands of terms.
constexpr double tolerance = 1e-5;

TEST(HuggingFace, LossesAreThoseOfTransformers) {
  EXPECT_NEAR(causal_loss(*io::load_gpt2(models / "gpt2", device::cpu, f32)), golden_loss("gpt2"),
              tolerance);
  EXPECT_NEAR(causal_loss(*io::load_llama(models / "llama", device::cpu, f32)),
              golden_loss("llama"), tolerance);
  EXPECT_NEAR(bert_loss(*io::load_bert(models / "bert", device::cpu, f32)), golden_loss("bert"),
              tolerance);
  EXPECT_NEAR(causal_loss(*io::load_causal_lm(models / "gpt2", device::cpu, f64).lm),
              golden_loss("gpt2"), 1e-9);
  // transformers turns by angles rounded to float32, whatever the model's dtype.
  EXPECT_NEAR(causal_loss(*io::load_causal_lm(models / "llama", device::cpu, f64).lm),
              golden_loss("llama"), 1e-7);
  EXPECT_NEAR(bert_loss(*io::load_bert(models / "bert", device::cpu, f64)), golden_loss("bert"),
              1e-9);
}

TEST(HuggingFace, WrittenFoldersReadBackToTheBit) {
  const TemporaryFolder folder;
  io::save(*io::load_gpt2(models / "gpt2", device::cpu, f32), folder / "gpt2");
  io::save(*io::load_llama(models / "llama", device::cpu, f32), folder / "llama");
  io::save(*io::load_bert(models / "bert", device::cpu, f32), folder / "bert");
  for (const char* name : {"gpt2", "llama", "bert"}) {
    const io::SafetensorsFile before(models / name / "model.safetensors"),
        after(folder / name / "model.safetensors");
    ASSERT_EQ(before.entries().size(), after.entries().size()) << name;
    for (const auto& [tensor, entry] : before.entries()) {
      EXPECT_EQ(entry.type, after.at(tensor).type) << tensor;
      EXPECT_EQ(before.bytes(tensor), after.bytes(tensor)) << tensor;
    }
  }
  EXPECT_EQ(causal_loss(*io::load_gpt2(folder / "gpt2", device::cpu, f32)),
            causal_loss(*io::load_gpt2(models / "gpt2", device::cpu, f32)));
}

TEST(HuggingFace, HalfPrecisionModelsAreMadeAtTheirPrecision) {
  const auto model = io::load_gpt2(models / "gpt2", device::cpu, bf16);
  for (const nn::NamedVariable& p : model->parameters())
    EXPECT_EQ(p.variable.dtype(), bf16) << p.path;
  EXPECT_NEAR(causal_loss(*model), golden_loss("gpt2"), 0.1);  // eight bits of mantissa
}

// Changes a copy of a folder's config and expects an error that names what is wrong.
void expect_config_error(const char* model, const char* field, const nlohmann::json& value,
                         const std::vector<std::string>& parts) {
  const TemporaryFolder folder;
  fs::copy(models / model, folder / model, fs::copy_options::recursive);
  std::ifstream in(folder / model / "config.json");
  nlohmann::json config = nlohmann::json::parse(in);
  config[field] = value;
  std::ofstream(folder / model / "config.json") << config;
  expect_error([&] { (void)io::load_causal_lm(folder / model, device::cpu, f32); }, parts);
}

TEST(HuggingFace, Errors) {
  expect_error([] { (void)io::load_gpt2("no/such/folder", device::cpu, f32); },
               {"no/such/folder", "not a folder"});
  expect_error([] { (void)io::load_gpt2(models / "llama", device::cpu, f32); },
               {"config.json", "\"gpt2\"", "\"llama\""});
  expect_error([] { (void)io::load_causal_lm(models / "bert", device::cpu, f32); },
               {"bert", "next token"});
  expect_config_error("gpt2", "model_type", "mamba", {"config.json", "mamba"});
  expect_config_error("gpt2", "model_type", 3, {"config.json", "model_type", "string"});
  expect_config_error("gpt2", "n_embd", -4, {"config.json", "n_embd", "-4"});
  expect_config_error("gpt2", "n_embd", "16", {"config.json", "n_embd", "\"16\""});
  expect_config_error("gpt2", "n_embd", nullptr, {"config.json", "n_embd", "missing"});
  expect_config_error("gpt2", "n_head", 3, {"16", "3 heads"});
  expect_config_error("gpt2", "n_layer", 3, {"model.safetensors", "no tensor \"transformer.h.2."});
  expect_config_error("gpt2", "n_layer", 1, {"model.safetensors", "belongs to no part"});
  expect_config_error("gpt2", "vocab_size", 62,
                      {"model.safetensors", "wte.weight", "(61, 16)", "(62, 16)"});
  expect_config_error("gpt2", "activation_function", "relu", {"config.json", "relu", "gelu"});
  expect_config_error("llama", "attention_bias", true, {"config.json", "biases"});
  expect_config_error("llama", "rope_scaling", {{"rope_type", "yarn"}}, {"config.json", "yarn"});
  expect_config_error("llama", "num_key_value_heads", 3, {"4 heads", "3 groups"});
}

}  // namespace
}  // namespace ebb::test
