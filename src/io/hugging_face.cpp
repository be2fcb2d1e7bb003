#include "ebb/io/hugging_face.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "core/json.h"
#include "ebb/error.h"
#include "ebb/io/atomic_file.h"
#include "ebb/io/safetensors.h"
#include "io/json_file.h"

namespace ebb::io {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

JsonFile read_config(const fs::path& folder, std::string_view type) {
  if (!fs::is_directory(folder)) throw FileError(fmt::format("{}: not a folder", folder.string()));
  JsonFile config(folder / "config.json");
  const std::string found = config.text("model_type");
  if (found != type)
    config.fail(fmt::format("\"model_type\" must be \"{}\" here, but is \"{}\"", type, found));
  return config;
}

// A setting that ebb has in one form only.
void require(const JsonFile& config, const char* field, const std::set<std::string>& accepted) {
  const std::string value = config.text(field, *accepted.begin());
  if (!accepted.contains(value))
    config.fail(
        fmt::format("\"{}\" is \"{}\", but ebb has only \"{}\"", field, value, *accepted.begin()));
}

models::Gpt2Config gpt2_config(const fs::path& folder) {
  const JsonFile c = read_config(folder, "gpt2");
  require(c, "activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  models::Gpt2Config config;
  config.vocabulary = c.integer("vocab_size", 1);
  config.context = c.integer("n_positions", 1);
  config.layers = c.integer("n_layer", 0);
  config.heads = c.integer("n_head", 1);
  config.width = c.integer("n_embd", 1);
  config.eps = c.real("layer_norm_epsilon", 1e-5);
  config.dropout = c.real("resid_pdrop", 0.1);
  return config;
}

models::LlamaConfig llama_config(const fs::path& folder) {
  const JsonFile c = read_config(folder, "llama");
  require(c, "hidden_act", {"silu"});
  if (c.flag("attention_bias", false) || c.flag("mlp_bias", false))
    c.fail("biases in attention or feed-forward parts are not supported");
  models::LlamaConfig config;
  config.vocabulary = c.integer("vocab_size", 1);
  config.width = c.integer("hidden_size", 1);
  config.hidden = c.integer("intermediate_size", 1);
  config.layers = c.integer("num_hidden_layers", 0);
  config.heads = c.integer("num_attention_heads", 1);
  config.key_value_heads = c.integer("num_key_value_heads", 1, config.heads);
  config.context = c.integer("max_position_embeddings", 1);
  config.eps = c.real("rms_norm_eps", 1e-6);
  config.tied = c.flag("tie_word_embeddings", false);
  if (c.integer("head_dim", 1, config.width / config.heads) != config.width / config.heads)
    c.fail("\"head_dim\" must be hidden_size / num_attention_heads");
  // Newer files keep the rotary settings in an object of their own.
  config.rope_base = c.real("rope_theta", 10000.0);
  for (const char* field : {"rope_parameters", "rope_scaling"}) {
    const auto found = c.json().find(field);
    if (found == c.json().end() || found->is_null()) continue;
    if (!found->is_object()) c.fail(fmt::format("\"{}\" must be an object", field));
    const std::string kind =
        found->value("rope_type", found->value("type", std::string("default")));
    if (kind != "default")
      c.fail(fmt::format("rotary embedding of type \"{}\" is not supported", kind));
    if (found->contains("rope_theta") && (*found)["rope_theta"].is_number())
      config.rope_base = (*found)["rope_theta"].get<double>();
  }
  return config;
}

models::BertConfig bert_config(const fs::path& folder) {
  const JsonFile c = read_config(folder, "bert");
  require(c, "hidden_act", {"gelu"});
  require(c, "position_embedding_type", {"absolute"});
  models::BertConfig config;
  config.vocabulary = c.integer("vocab_size", 1);
  config.width = c.integer("hidden_size", 1);
  config.layers = c.integer("num_hidden_layers", 0);
  config.heads = c.integer("num_attention_heads", 1);
  config.hidden = c.integer("intermediate_size", 1);
  config.context = c.integer("max_position_embeddings", 1);
  config.types = c.integer("type_vocab_size", 1, 2);
  config.eps = c.real("layer_norm_eps", 1e-12);
  config.dropout = c.real("hidden_dropout_prob", 0.1);
  const auto labels = c.json().find("id2label");
  config.classes = labels != c.json().end() && labels->is_object() && !labels->empty()
                       ? static_cast<std::int64_t>(labels->size())
                       : c.integer("num_labels", 1, 2);
  return config;
}

// Ends of names that a file may hold beside the parameters: buffers that old versions stored, tied
// copies.
using Ignored = std::initializer_list<std::string_view>;

// Every parameter must be in the file, and every tensor of the file must be wanted or ignored.
// `prefix` may be missing from all names.
void load_weights(nn::ModuleBase& model, const fs::path& folder, const std::string& prefix,
                  Ignored ignored) {
  const SafetensorsFile file(folder / "model.safetensors");
  const auto& entries = file.entries();
  const bool bare =
      !prefix.empty() && std::none_of(entries.begin(), entries.end(),
                                      [&](const auto& e) { return e.first.starts_with(prefix); });
  const auto stored = [&](const std::string& path) {
    return bare && path.starts_with(prefix) ? path.substr(prefix.size()) : path;
  };
  std::set<std::string> wanted;
  for (const nn::NamedVariable& p : model.parameters()) {
    wanted.insert(stored(p.path));
    file.load(stored(p.path), p.variable);
  }
  for (const auto& [name, entry] : entries) {
    const bool known = wanted.contains(name) || std::any_of(ignored.begin(), ignored.end(),
                                                            [&name = name](std::string_view end) {
                                                              return name.ends_with(end);
                                                            });
    if (!known)
      throw FileError(fmt::format("{}: tensor \"{}\" belongs to no part of the model",
                                  file.path().string(), name));
  }
}

// A number of layers that the file has no tensors for would be believed until memory runs out.
void check_layers(const fs::path& folder, std::int64_t layers) {
  const SafetensorsFile file(folder / "model.safetensors");
  if (layers > static_cast<std::int64_t>(file.entries().size()))
    throw FileError(fmt::format("{}: {} layers are expected, but {} has only {} tensors",
                                (folder / "config.json").string(), layers, file.path().string(),
                                file.entries().size()));
}

template <class Model, class Config>
std::unique_ptr<Model> load(const fs::path& folder, Device device, DType dtype,
                            const Config& config, const std::string& prefix, Ignored ignored) {
  check_layers(folder, config.layers);
  const nn::MakeScope scope(device, dtype);
  auto model = std::make_unique<Model>(config);
  load_weights(*model, folder, prefix, ignored);
  return model;
}

void write(const nn::ModuleBase& model, const fs::path& folder, const Json& config) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw FileError(
        fmt::format("{}: cannot make the folder: {}", folder.string(), error.message()));
  std::vector<NamedTensor> tensors;
  for (const nn::NamedVariable& p : model.parameters()) {
    if (!p.variable.has_value()) p.variable.materialise();
    tensors.push_back({p.path, p.variable});
  }
  write_safetensors(folder / "model.safetensors", std::move(tensors), {{"format", "pt"}});
  AtomicFile file(folder / "config.json");
  file.write(json_text(config, 2) + "\n");
  file.commit();
}

}  // namespace

std::string model_type(const fs::path& folder) {
  if (!fs::is_directory(folder)) throw FileError(fmt::format("{}: not a folder", folder.string()));
  const JsonFile config(folder / "config.json");
  const std::string type = config.text("model_type");
  if (type != "gpt2" && type != "bert" && type != "llama")
    config.fail(fmt::format("\"model_type\" is \"{}\", but ebb reads gpt2, bert and llama", type));
  return type;
}

std::unique_ptr<models::Gpt2> load_gpt2(const fs::path& folder, Device device, DType dtype) {
  return load<models::Gpt2>(folder, device, dtype, gpt2_config(folder), "transformer.",
                            {"attn.bias", "attn.masked_bias", "lm_head.weight"});
}

std::unique_ptr<models::Llama> load_llama(const fs::path& folder, Device device, DType dtype) {
  return load<models::Llama>(folder, device, dtype, llama_config(folder), "",
                             {"rotary_emb.inv_freq", "lm_head.weight"});
}

std::unique_ptr<models::BertClassifier> load_bert(const fs::path& folder, Device device,
                                                  DType dtype) {
  return load<models::BertClassifier>(folder, device, dtype, bert_config(folder), "",
                                      {".position_ids"});
}

LoadedLm load_causal_lm(const fs::path& folder, Device device, DType dtype) {
  const auto both = [](auto model) {
    models::CausalLm* lm = model.get();
    return LoadedLm{std::move(model), lm};
  };
  const std::string type = model_type(folder);
  if (type == "gpt2") return both(load_gpt2(folder, device, dtype));
  if (type == "llama") return both(load_llama(folder, device, dtype));
  throw FileError(fmt::format("{}: a {} model does not predict the next token; gpt2 and llama do",
                              folder.string(), type));
}

void save(const models::Gpt2& model, const fs::path& folder) {
  const models::Gpt2Config& c = model.config();
  write(model, folder,
        {{"architectures", {"GPT2LMHeadModel"}},
         {"model_type", "gpt2"},
         {"activation_function", "gelu_new"},
         {"vocab_size", c.vocabulary},
         {"n_positions", c.context},
         {"n_ctx", c.context},
         {"n_embd", c.width},
         {"n_layer", c.layers},
         {"n_head", c.heads},
         {"layer_norm_epsilon", c.eps},
         {"resid_pdrop", c.dropout},
         {"embd_pdrop", c.dropout},
         {"attn_pdrop", c.dropout},
         {"tie_word_embeddings", true},
         {"torch_dtype", name(model.dtype())}});
}

void save(const models::Llama& model, const fs::path& folder) {
  const models::LlamaConfig& c = model.config();
  write(model, folder,
        {{"architectures", {"LlamaForCausalLM"}},
         {"model_type", "llama"},
         {"hidden_act", "silu"},
         {"vocab_size", c.vocabulary},
         {"hidden_size", c.width},
         {"intermediate_size", c.hidden},
         {"num_hidden_layers", c.layers},
         {"num_attention_heads", c.heads},
         {"num_key_value_heads", c.key_value_heads},
         {"max_position_embeddings", c.context},
         {"rms_norm_eps", c.eps},
         {"rope_theta", c.rope_base},
         {"attention_bias", false},
         {"mlp_bias", false},
         {"tie_word_embeddings", c.tied},
         {"torch_dtype", name(model.dtype())}});
}

void save(const models::BertClassifier& model, const fs::path& folder) {
  const models::BertConfig& c = model.config();
  Json labels = Json::object(), ids = Json::object();
  for (std::int64_t i = 0; i < c.classes; ++i) {
    labels[std::to_string(i)] = fmt::format("LABEL_{}", i);
    ids[fmt::format("LABEL_{}", i)] = i;
  }
  write(model, folder,
        {{"architectures", {"BertForSequenceClassification"}},
         {"model_type", "bert"},
         {"hidden_act", "gelu"},
         {"position_embedding_type", "absolute"},
         {"vocab_size", c.vocabulary},
         {"hidden_size", c.width},
         {"num_hidden_layers", c.layers},
         {"num_attention_heads", c.heads},
         {"intermediate_size", c.hidden},
         {"max_position_embeddings", c.context},
         {"type_vocab_size", c.types},
         {"layer_norm_eps", c.eps},
         {"hidden_dropout_prob", c.dropout},
         {"attention_probs_dropout_prob", c.dropout},
         {"id2label", labels},
         {"label2id", ids},
         {"torch_dtype", name(model.dtype())}});
}

}  // namespace ebb::io
