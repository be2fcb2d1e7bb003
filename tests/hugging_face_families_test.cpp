// Further families of models (tools/make_model_families.py) give the losses and gradients of
// transformers, and what ebb writes it reads again.
#include <gtest/gtest.h>

#include <cmath>

#include "io/hugging_face/family.h"
#include "support/model_folders.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const fs::path golden_families = fs::path(EBB_GOLDEN_FOLDER) / "families";

// A copy of a family's folder with other fields in its config.json.
fs::path changed_folder(const TemporaryFolder& place, const std::string& model,
                        const Json& fields) {
  const fs::path folder = place / model;
  fs::remove_all(folder);
  fs::copy(golden_families / model, folder);
  Json config = read_json(folder / "config.json");
  config.update(fields);
  std::ofstream(folder / "config.json") << config;
  return folder;
}

// HIDDEN of tools/make_model_families.py: tokens to be predicted, and what stands in their place.
Tensor masked_loss_of(models::MaskedLm& model) {
  std::vector<std::int64_t> ids = tokens().to_vector<std::int64_t>(), targets(24, -100);
  for (const auto& [place, token] : std::map<std::size_t, std::optional<std::int64_t>>{
           {1, 5}, {4, {}}, {7, 5}, {13, 17}, {15, 5}}) {
    targets[place] = ids[place];
    ids[place] = token.value_or(ids[place]);
  }
  std::vector<std::uint8_t> seen(24, 1);
  std::fill(seen.begin() + 12 + 9, seen.end(), std::uint8_t{0});
  return model.loss(Tensor::from(ids, {2, 12}), Tensor::from(targets, {2, 12}),
                    cast(Tensor::from(seen, {2, 12}), b8));
}

Tensor loss_of(const io::ModelFolder& folder) {
  if (folder.lm) return causal_loss_of(*folder.lm);
  if (folder.masked_lm) return masked_loss_of(*folder.masked_lm);
  return bert_loss_of(dynamic_cast<models::BertClassifier&>(*folder.module));
}

io::ModelFolder loaded(const fs::path& path, DType dtype) {
  const bool masked = path.filename().string().ends_with("_masked");
  io::ModelFolder folder = io::open_folder(
      path, device::cpu, dtype, masked ? io::EncoderHead::masked_lm : io::EncoderHead::classifier);
  folder.load();
  return folder;
}

io::Names names_of(const nn::ModuleBase& model) {
  if (const auto* llama = dynamic_cast<const models::Llama*>(&model))
    return io::llama_names(llama->config());
  if (const auto* masked = dynamic_cast<const models::BertMaskedLm*>(&model))
    return io::bert_names(masked->config(), io::EncoderHead::masked_lm);
  return io::bert_names(dynamic_cast<const models::BertClassifier&>(model).config(),
                        io::EncoderHead::classifier);
}

// Norms of the gradients, by the names of the tensors in files.
std::map<std::string, double> gradient_norms(const io::ModelFolder& folder) {
  const io::Names names = names_of(*folder.module);
  std::vector<Tensor> parameters, squares;
  for (const nn::NamedVariable& p : folder.module->parameters()) parameters.push_back(p.variable);
  for (const Tensor& g : grad(loss_of(folder), parameters))
    squares.push_back(reshape(sum(g * g), {1}));
  const std::vector<double> values = concat(squares, 0).to_vector<double>();
  std::map<std::string, double> norms;
  std::size_t i = 0;
  for (const nn::NamedVariable& p : folder.module->parameters()) {
    const auto part = names.part(p.path);
    norms[names.in_files(part ? part->first : p.path)] += values[i++];
  }
  for (auto& [name, norm] : norms) norm = std::sqrt(norm);
  return norms;
}

TEST(HuggingFaceFamilies, LossesAndGradientsAreThoseOfTransformers) {
  const TemporaryFolder place;
  for (const Json& row : read_json(golden_families / "families.json")) {
    const std::string name = row["model"].get<std::string>() + " " + row["fields"].dump();
    const fs::path path = changed_folder(place, row["model"], row["fields"]);
    const double expected = row["loss"];
    // float32 keeps about seven digits, and a loss is a sum of thousands of terms.
    EXPECT_NEAR(loss_of(loaded(path, f32)).item(), expected, 1e-5) << name;
    const io::ModelFolder folder = loaded(path, f64);
    // transformers turns heads by angles rounded to float32, whatever the model's dtype.
    EXPECT_NEAR(loss_of(folder).item(), expected, 1e-6) << name;
    const std::map<std::string, double> norms = gradient_norms(folder);
    EXPECT_EQ(norms.size(), row["gradients"].size()) << name;
    for (const auto& [parameter, norm] : row["gradients"].items()) {
      ASSERT_TRUE(norms.contains(parameter)) << name << ": " << parameter;
      EXPECT_NEAR(norms.at(parameter), norm.get<double>(), 1e-5 * (norm.get<double>() + 1e-2))
          << name << ": " << parameter;
    }
  }
}

TEST(HuggingFaceFamilies, WrittenFoldersReadBackToTheBit) {
  const TemporaryFolder out;
  for (const char* name : {"llama", "mistral", "qwen2", "qwen3", "gpt_neox", "roberta",
                           "distilbert", "bert_masked", "roberta_masked", "distilbert_masked"}) {
    const io::ModelFolder folder = loaded(golden_families / name, f32);
    folder.save(out / name);
    const io::SafetensorsFile before(golden_families / name / "model.safetensors"),
        after(out / name / "model.safetensors");
    ASSERT_EQ(before.entries().size(), after.entries().size()) << name;
    for (const auto& [tensor, entry] : before.entries()) {
      EXPECT_EQ(entry.type, after.at(tensor).type) << tensor;
      EXPECT_EQ(before.bytes(tensor), after.bytes(tensor)) << tensor;
    }
    EXPECT_EQ(read_json(out / name / "config.json"),
              read_json(golden_families / name / "config.json"));
  }
}

// A config that ebb writes can be read again.
TEST(HuggingFaceFamilies, ConfigsOfOwnMakingComeBack) {
  const TemporaryFolder out;
  for (const char* name : {"llama", "mistral", "qwen2", "qwen3", "gpt_neox"}) {
    for (const Json& fields :
         {Json::object(),
          Json{{"rope_parameters",
                {{"rope_type", "yarn"},
                 {"factor", 4.0},
                 {"rope_theta", 50.0},
                 {"partial_rotary_factor", std::string(name) == "gpt_neox" ? 0.5 : 1.0},
                 {"original_max_position_embeddings", 4}}}}}) {
      const auto model = io::load_llama(changed_folder(out, name, fields), device::cpu, f32);
      const double loss = causal_loss(*model);
      model->set_origin({});
      const fs::path written = out / (std::string(name) + "-written");
      io::save(*model, written);
      EXPECT_EQ(io::model_type(written), name);
      EXPECT_EQ(causal_loss(*io::load_llama(written, device::cpu, f32)), loss) << name << fields;
    }
  }
  for (const char* name : {"roberta", "distilbert"}) {
    const auto model = io::load_bert(golden_families / name, device::cpu, f32);
    const double loss = bert_loss(*model);
    model->set_origin({});
    io::save(*model, out / "written");
    EXPECT_EQ(bert_loss(*io::load_bert(out / "written", device::cpu, f32)), loss) << name;
  }
  for (const char* name : {"bert_masked", "roberta_masked", "distilbert_masked"}) {
    const auto model = io::load_bert_masked_lm(golden_families / name, device::cpu, f32);
    const double loss = masked_loss_of(*model).item();
    model->set_origin({});
    io::save(*model, out / "masked");
    EXPECT_EQ(masked_loss_of(*io::load_bert_masked_lm(out / "masked", device::cpu, f32)).item(),
              loss)
        << name;
  }
}

// The tensors of a masked model's file, to be changed and written again.
std::map<std::string, Tensor> tensors_of(const fs::path& folder) {
  const io::SafetensorsFile file(folder / "model.safetensors");
  std::map<std::string, Tensor> result;
  for (const auto& [name, entry] : file.entries()) {
    const Variable value(zeros(entry.type.shape, entry.type.dtype), Category::weights);
    file.load(name, value);
    result.emplace(name, value);
  }
  return result;
}
void write_tensors(const fs::path& folder, const std::map<std::string, Tensor>& tensors) {
  std::vector<io::NamedTensor> named;
  for (const auto& [name, tensor] : tensors) named.push_back({name, eval(tensor)});
  io::write_safetensors(folder / "model.safetensors", named, {{"format", "pt"}});
}

// Old files hold a tensor under both of its names. A head may have a matrix of its own.
TEST(HuggingFaceFamilies, TheMaskedHeadIsTiedOrHasItsOwnMatrix) {
  const TemporaryFolder place;
  const fs::path folder = changed_folder(place, "bert_masked", Json::object());
  const double expected = loss_of(loaded(folder, f32)).item();
  std::map<std::string, Tensor> tensors = tensors_of(folder);
  tensors["cls.predictions.decoder.weight"] = tensors.at("bert.embeddings.word_embeddings.weight");
  tensors["cls.predictions.decoder.bias"] = tensors.at("cls.predictions.bias");
  write_tensors(folder, tensors);
  EXPECT_EQ(loss_of(loaded(folder, f32)).item(), expected);
  tensors["cls.predictions.decoder.weight"] = 2.0 * tensors.at("cls.predictions.decoder.weight");
  write_tensors(folder, tensors);
  const auto untied = io::load_bert_masked_lm(folder, device::cpu, f32);
  EXPECT_FALSE(untied->config().tied);
  const double other = masked_loss_of(*untied).item();
  EXPECT_NE(other, expected);
  io::save(*untied, place / "untied");
  EXPECT_EQ(masked_loss_of(*io::load_bert_masked_lm(place / "untied", device::cpu, f32)).item(),
            other);
  tensors["cls.predictions.decoder.bias"] = 2.0 * tensors.at("cls.predictions.bias");
  write_tensors(folder, tensors);
  EXPECT_THROW(io::load_bert_masked_lm(folder, device::cpu, f32), FileError);
}

// A folder with one head can be opened with the other, which then starts from random values.
TEST(HuggingFaceFamilies, HeadsCanBeExchanged) {
  for (const char* name : {"roberta", "distilbert"}) {
    const auto masked = io::load_bert_masked_lm(golden_families / name, device::cpu, f32);
    EXPECT_FALSE(masked->origin().initialised.empty());
    EXPECT_FALSE(masked->origin().unused.empty());  // the classifier
    const auto classifier =
        io::load_bert(golden_families / (std::string(name) + "_masked"), device::cpu, f32);
    EXPECT_FALSE(classifier->origin().initialised.empty());
    EXPECT_FALSE(classifier->origin().unused.empty());  // the head for masked words
  }
}

TEST(HuggingFaceFamilies, WhatIsNotSupportedIsRefusedByItsField) {
  const TemporaryFolder place;
  struct Case {
    const char* model;
    Json fields;
    std::vector<std::string> parts;
  };
  const std::vector<Case> cases{
      {"llama", {{"rope_parameters", {{"rope_type", "longrope"}}}}, {"rope_type", "longrope"}},
      {"llama", {{"rope_parameters", {{"rope_type", "linear"}}}}, {"linear", "factor"}},
      {"llama",
       {{"rope_parameters", {{"rope_type", "linear"}, {"factor", 2.0}, {"long_factor", {1}}}}},
       {"rope_parameters.long_factor"}},
      {"llama",
       {{"rope_parameters", {{"rope_type", "llama3"}, {"factor", 2.0}}}},
       {"llama3", "low_freq_factor"}},
      {"llama", {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}, {"0.5", "only 1.0"}},
      {"llama", {{"sliding_window", 7}}, {"sliding_window", "7"}},
      {"mistral", {{"sliding_window", 0}}, {"sliding_window", "0"}},
      {"mistral", {{"attention_bias", true}}, {"attention_bias"}},
      {"mistral", {{"layer_types", {"full_attention"}}}, {"layer_types"}},
      {"qwen2", {{"layer_types", {"full_attention"}}}, {"layer_types", "list of 2"}},
      {"qwen2",
       {{"layer_types", {"sliding_attention", "full_attention"}}},
       {"sliding_attention", "use_sliding_window"}},
      {"qwen3", {{"layer_types", {"chunked", "full_attention"}}}, {"layer_types", "chunked"}},
      {"gpt_neox", {{"rope_parameters", {{"partial_rotary_factor", 0.4}}}}, {"rotary_pct", "even"}},
      {"gpt_neox", {{"num_key_value_heads", 1}}, {"num_key_value_heads"}},
      {"roberta", {{"pad_token_id", nullptr}}, {"pad_token_id"}},
      {"roberta", {{"pad_token_id", 40}}, {"pad_token_id"}},
      {"distilbert", {{"hidden_size", 8}}, {"dim", "hidden_size"}},
      {"distilbert", {{"layer_norm_eps", 0.1}}, {"layer_norm_eps"}},
  };
  for (const Case& c : cases)
    expect_error(
        [&] { io::open_folder(changed_folder(place, c.model, c.fields), device::cpu, f32); },
        c.parts);
}

// A tensor that has the name of a parameter in ebb, but not the name that files use for it, belongs
// to another head: RobertaForTokenClassification has a "classifier.weight" of the classifier's
// shape.
TEST(HuggingFaceFamilies, NamesOfParametersAreNotNamesOfTensors) {
  struct Row {
    std::string model, written, instead;
  };
  for (const Row& row :
       {Row{"roberta", "classifier.out_proj.weight", "classifier.weight"},
        Row{"roberta", "classifier.dense.bias", "bert.pooler.dense.bias"},
        Row{"distilbert", "pre_classifier.weight", "bert.pooler.dense.weight"},
        Row{"distilbert", "distilbert.transformer.layer.0.ffn.lin1.bias",
            "bert.encoder.layer.0.intermediate.dense.bias"},
        Row{"gpt_neox", "gpt_neox.final_layer_norm.weight", "gpt_neox.norm.weight"}}) {
    const TemporaryFolder place;
    const fs::path folder = changed_folder(place, row.model, Json::object());
    std::vector<io::NamedTensor> tensors;
    {
      const io::SafetensorsFile file(folder / "model.safetensors");
      ASSERT_TRUE(file.entries().contains(row.written)) << row.model;
      for (const auto& [name, entry] : file.entries()) {
        const Variable value(zeros(entry.type.shape, entry.type.dtype));
        file.load(name, value);
        tensors.push_back({name == row.written ? row.instead : name, value});
      }
    }
    io::write_safetensors(folder / "model.safetensors", tensors);
    expect_error([&] { (void)loaded(folder, f32); }, {"model.safetensors", row.instead, "no part"});
  }
}

TEST(HuggingFaceFamilies, AWindowHidesEarlierTokens) {
  const auto model = io::load_llama(golden_families / "mistral", device::cpu, f64);  // window 5
  const auto last_logits = [&](std::size_t changed) {
    std::vector<std::int64_t> ids{3, 1, 4, 1, 5, 9, 2, 6, 5, 3};
    if (changed < ids.size()) ids[changed] = 50;
    const Tensor all = model->logits(Tensor::from(ids, {1, 10}));
    return slice(all, 1, 9, 10).to_vector<double>();
  };
  // Two layers with windows of five reach back eight tokens: to token 1, but not to token 0.
  EXPECT_EQ(last_logits(0), last_logits(99));
  EXPECT_NE(last_logits(1), last_logits(99));
}

}  // namespace
}  // namespace ebb::test
