// Every field of config.json: a field that changes the loss changes it as in transformers, a field
// that does not is known to be harmless, and any other is an error that names it.
#include <gtest/gtest.h>

#include <limits>

#include "support/model_folders.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

using Json = nlohmann::json;

// transformers turns Llama's heads by angles rounded to float32, whatever the model's dtype.
double tolerance(const std::string& model) { return model == "llama" ? 2e-7 : 1e-9; }

TEST(HuggingFaceFields, ChangeTheLossAsInTransformers) {
  const Json rows = read_json(golden_models / "variants.json");
  ASSERT_GT(rows.size(), 50u);
  for (const Json& row : rows) {
    const std::string model = row["model"];
    FolderCopy folder(model);
    folder.set(row["fields"]);
    EXPECT_NEAR(folder_loss(folder.path(), f64), row["loss"].get<double>(), tolerance(model))
        << model << " " << row["fields"];
  }
}

TEST(HuggingFaceFields, ActivationsAreThoseOfTransformers) {
  Json table = read_json(golden_models / "activations.json");
  const auto x = table["x"].get<std::vector<double>>();
  table.erase("x");
  const Tensor points = Tensor::from(x, {static_cast<std::int64_t>(x.size())});
  for (const auto& [name, expected] : table.items()) {
    const auto activation = nn::activation_named(name);
    ASSERT_TRUE(activation) << name;
    const auto values = activate(*activation, points).to_vector<double>();
    for (std::size_t i = 0; i < x.size(); ++i)
      // gelu_fast has its constant to ten digits only.
      EXPECT_NEAR(values[i], expected[i].get<double>(), 1e-9) << name << " at " << x[i];
    EXPECT_EQ(nn::activation_named(nn::name(*activation)), activation) << name;
  }
}

// The loss of a model in training, with the dropout of the folder's own config.
double training_loss(const std::filesystem::path& folder) {
  const nn::ForwardScope scope(nn::Mode::train);
  return folder_loss(folder, f64);
}

TEST(HuggingFaceFields, EachDropoutIsItsOwn) {
  const std::map<std::string, std::vector<const char*>> fields{
      {"gpt2", {"embd_pdrop", "attn_pdrop", "resid_pdrop"}},
      {"llama", {"attention_dropout"}},
      {"bert", {"hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"}}};
  for (const auto& [model, names] : fields) {
    Json off;
    for (const char* name : names) off[name] = 0.0;
    FolderCopy quiet(model);
    quiet.set(off);
    const double loss = folder_loss(quiet.path(), f64);
    EXPECT_EQ(training_loss(quiet.path()), loss) << model;
    for (const char* name : names) {
      FolderCopy folder(model);
      folder.set(off).set({{name, 0.5}});
      EXPECT_NE(training_loss(folder.path()), loss) << name;
      EXPECT_EQ(folder_loss(folder.path(), f64), loss) << name;
    }
  }
  FolderCopy folder("gpt2");
  folder.set({{"embd_pdrop", 0.1}, {"attn_pdrop", 0.2}, {"resid_pdrop", 0.3}});
  const auto gpt2 = io::load_gpt2(folder.path(), device::cpu, f32);
  EXPECT_EQ(gpt2->config().dropout.embedding, 0.1);
  EXPECT_EQ(gpt2->config().dropout.attention, 0.2);
  EXPECT_EQ(gpt2->config().dropout.residual, 0.3);
}

TEST(HuggingFaceFields, PaddingTokensHaveNoGradient) {
  const auto row_gradient = [](nn::ModuleBase& model, const Tensor& loss, const char* table,
                               std::int64_t row) {
    for (const nn::NamedVariable& p : model.parameters())
      if (p.path == table) {
        const Tensor g = grad(loss, {p.variable}).front();
        return sum(abs(slice(g, 0, row, row + 1))).item();
      }
    return -1.0;
  };
  const std::int64_t token = 10, other = 34;  // tokens() has both
  for (const auto& [value, row] : {std::pair{Json(token), token}, {Json(other - 61), other}}) {
    FolderCopy llama("llama"), bert("bert");
    llama.set({{"pad_token_id", value}}), bert.set({{"pad_token_id", value}});
    const auto l = io::load_llama(llama.path(), device::cpu, f64);
    const auto b = io::load_bert(bert.path(), device::cpu, f64);
    const char *l_table = "model.embed_tokens.weight",
               *b_table = "bert.embeddings.word_embeddings.weight";
    for (const std::int64_t each : {token, other}) {
      const double of_llama = row_gradient(*l, causal_loss_of(*l), l_table, each),
                   of_bert = row_gradient(*b, bert_loss_of(*b), b_table, each);
      EXPECT_EQ(of_llama == 0.0, each == row) << value << " " << each << " " << of_llama;
      EXPECT_EQ(of_bert == 0.0, each == row) << value << " " << each << " " << of_bert;
    }
  }
}

TEST(HuggingFaceFields, OneLabelIsRegression) {
  FolderCopy folder("bert");
  folder.remove("id2label").remove("label2id").set({{"num_labels", 1}});
  folder.change_tensors([](FolderCopy::Tensors& t) {
    t["classifier.weight"] = slice(t["classifier.weight"], 0, 0, 1);
    t["classifier.bias"] = slice(t["classifier.bias"], 0, 0, 1);
  });
  const auto model = io::load_bert(folder.path(), device::cpu, f64);
  const auto y = (*model)(tokens()).to_vector<double>();
  const double mean = ((y[0] - 0.5) * (y[0] - 0.5) + (y[1] + 1.0) * (y[1] + 1.0)) / 2.0;
  for (const Shape& shape : {Shape{2}, Shape{2, 1}})
    EXPECT_NEAR(model->loss(tokens(), Tensor::from(std::vector<double>{0.5, -1.0}, shape)).item(),
                mean, 1e-12);
  expect_error(
      [&] {
        model->loss(tokens(), Tensor::from(std::vector<std::int64_t>{0, 1}, {2}));
      },
      {"BERT", "floating", "int64"});
  folder.set({{"problem_type", "single_label_classification"}});
  expect_error([&] { (void)io::load_bert(folder.path(), device::cpu, f32); },
               {"config.json", "problem_type", "2 classes"});
}

TEST(HuggingFaceFields, FloatingLabelsMeanEachClassByItself) {
  const auto model = io::load_bert(golden_models / "bert", device::cpu, f64);
  const Tensor labels = Tensor::from(std::vector<double>{0, 0, 1, 1, 0, 0}, {2, 3});
  EXPECT_EQ(model->loss(tokens(), labels).item(),
            bce_with_logits((*model)(tokens()), labels).item());
}

struct Refused {
  const char* model;
  const char* field;
  Json value;
  const char* expected = "";  // what the message says beside the field
};

TEST(HuggingFaceFields, RefusedOnesAreNamed) {
  const Json null, object = Json::object();
  std::vector<Refused> rows{
      {"gpt2", "n_embd", -4, "-4"},
      {"gpt2", "n_embd", "16", "\"16\""},
      {"gpt2", "n_embd", 16.0, "16.0"},
      {"gpt2", "n_embd", null, "null"},
      {"gpt2", "n_embd", true, "true"},
      {"gpt2", "n_embd", 1e30, "whole number"},
      {"gpt2", "n_layer", 4294967298, "4294967298"},
      {"gpt2", "n_layer", 20000, "10000"},
      {"gpt2", "hidden_size", 8, "n_embd"},
      {"gpt2", "n_inner", 0, "or null"},
      {"gpt2", "attn_pdrop", "0.1", "\"0.1\""},
      {"gpt2", "attn_pdrop", 1.0, "below 1"},
      {"gpt2", "embd_pdrop", -0.1, "-0.1"},
      {"gpt2", "resid_pdrop", null, "null"},
      {"gpt2", "layer_norm_epsilon", "1e-5", "number"},
      {"gpt2", "layer_norm_epsilon", -1.0, "at least 0"},
      {"gpt2", "tie_word_embeddings", null, "true or false"},
      {"gpt2", "tie_word_embeddings", "true", "true or false"},
      {"gpt2", "tie_word_embeddings", 1, "true or false"},
      {"gpt2", "scale_attn_weights", 0, "true or false"},
      {"gpt2", "activation_function", "prelu", "prelu"},
      {"gpt2", "activation_function", "gelu_newest", "gelu_newest"},
      {"gpt2", "activation_function", 3, "3"},
      {"llama", "is_causal", null, "null"},
      {"llama", "rope_theta", "10000", "\"10000\""},
      {"llama", "rope_theta", null, "null"},
      {"llama", "rope_theta", 0, "above 0"},
      {"llama", "rope_parameters", {{"rope_theta", "500"}}, "rope_theta"},
      {"llama", "rope_parameters", {{"rope_type", "llama3"}}, "llama3"},
      {"llama", "rope_parameters", {{"factor", 2.0}}, "factor"},
      {"llama", "rope_parameters", {{"partial_rotary_factor", 0.5}}, "0.5"},
      {"llama", "rope_parameters", 3, "object"},
      {"llama", "rope_scaling", {{"type", "linear"}, {"factor", -2.0}}, "above 0"},
      {"llama", "rope_scaling", {{"type", "longrope"}, {"factor", 2.0}}, "longrope"},
      {"llama", "rope_scaling", {{"rope_type", "yarn"}}, "yarn"},
      {"llama", "rope_scaling", "linear", "object"},
      {"llama", "partial_rotary_factor", 0.5, "1.0"},
      {"llama", "rope_interleaved", true, "false"},
      {"llama", "sliding_window", 4, "null"},
      {"llama", "layer_types", {"full_attention", "full_attention"}, "knows"},
      {"llama", "attention_dropout", "0.5", "or null"},
      {"llama", "attention_bias", "no", "true or false"},
      {"llama", "pad_token_id", 61, "below 61"},
      {"llama", "pad_token_id", -62, "below 61"},
      {"llama", "pad_token_id", std::numeric_limits<std::uint64_t>::max(), "below 61"},
      {"llama", "num_key_value_heads", 0, "or null"},
      {"llama", "head_dim", -1, "or null"},
      {"llama", "hidden_act", "xielu", "xielu"},
      {"bert", "is_decoder", true, "false"},
      {"bert", "is_causal", true, "false"},
      {"bert", "position_embedding_type", "relative_key", "absolute"},
      {"bert", "embedding_size", 8, "knows"},
      {"bert", "problem_type", "ranking", "regression"},
      {"bert", "problem_type", 1, "regression"},
      {"bert", "num_labels", 2, "3 classes"},
      {"bert", "id2label", object, "{}"},
      {"bert", "id2label", {"a", "b", "c"}, "object"},
      {"bert", "id2label", {{"one", "a"}}, "one"},
      {"bert", "id2label", {{"0", "a"}, {"00", "b"}}, "00"},
      {"bert", "label2id", 3, "object"},
      {"bert", "attention_probs_dropout_prob", "0.1", "number"},
      {"bert", "classifier_dropout", 1.5, "or null"},
      {"bert", "directionality", "left", "bidi"},
      {"bert", "pooler_type", "mean", "first_token_transform"},
      {"bert", "initializer_range", "0.02", "number"},
  };
  for (const char* model : {"gpt2", "llama", "bert"}) {
    for (const Refused& row : {Refused{model, "quantization_config", {{"quant_method", "fp8"}}},
                               {model, "add_cross_attention", true},
                               {model, "cross_attention_hidden_size", 8},
                               {model, "is_encoder_decoder", true},
                               {model, "pruned_heads", {{"0", {1}}}},
                               {model, "per_layer_config", {{"0", object}}},
                               {model, "auto_map", {{"AutoModel", "custom.Model"}}},
                               {model, "transformers_weights", "other.safetensors"},
                               {model, "use_bfloat16", true},
                               {model, "a_field_of_tomorrow", 17, "17"},
                               {model, "another_one", null, "null"}})
      rows.push_back(row);
    if (std::string(model) != "bert") rows.push_back({model, "is_causal", false, "true"});
  }
  for (const Refused& row : rows) {
    SCOPED_TRACE(std::string(row.model) + " " + row.field + " " + row.value.dump());
    FolderCopy folder(row.model);
    folder.set({{row.field, row.value}});
    expect_error([&] { (void)folder_loss(folder.path(), f32); },
                 {"config.json", row.field, row.expected});
  }
}

TEST(HuggingFaceFields, FieldsMayNotRepeat) {
  FolderCopy folder("gpt2");
  const std::string text = read_json(folder.path() / "config.json").dump();
  std::ofstream(folder.path() / "config.json") << "{\"n_head\": 2," << text.substr(1);
  expect_error([&] { (void)folder_loss(folder.path(), f32); }, {"config.json", "n_head", "twice"});
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "[";
  std::ofstream(folder.path() / "config.json") << "{\"n_head\": " << deep;
  expect_error([&] { (void)folder_loss(folder.path(), f32); }, {"config.json", "deep"});
}

}  // namespace
}  // namespace ebb::test
