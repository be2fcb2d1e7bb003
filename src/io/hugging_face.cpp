#include "ebb/io/hugging_face.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/json.h"
#include "data/file.h"
#include "ebb/error.h"
#include "ebb/io/atomic_file.h"
#include "ebb/nn/adapt.h"
#include "io/hugging_face/form.h"
#include "io/hugging_face/open.h"
#include "io/hugging_face/packed.h"
#include "io/hugging_face/replace.h"

namespace ebb::io {
namespace {

namespace fs = std::filesystem;

constexpr const char* lm_head = "lm_head.weight";

JsonFile read_config(const fs::path& folder) {
  if (!fs::is_directory(folder)) throw FileError(fmt::format("{}: not a folder", folder.string()));
  return JsonFile(folder / "config.json");
}

JsonFile read_config(const fs::path& folder, std::string_view type) {
  JsonFile config = read_config(folder);
  const std::string found = config.text("model_type");
  if (found != type)
    config.fail(fmt::format("\"model_type\" must be \"{}\" here, but is \"{}\"", type, found));
  return config;
}

// Whether the output uses the token embedding. If tensors contradict the config, the tensors
// decide: a separate head is never dropped.
bool resolve_tied(bool said, FolderWeights& weights, const std::string& head,
                  const std::string& embedding, const JsonFile& config) {
  if (weights.absent()) return said;
  const bool has_head = weights.has(head);
  if (!said && !has_head)
    config.fail(fmt::format(
        "\"tie_word_embeddings\" is {}, but the folder has no tensor \"{}\" of the head's own",
        config.json().contains("tie_word_embeddings") ? "false" : "false where it is not given",
        head));
  if (!said || !has_head) return said;
  if (!weights.has(embedding)) {  // either tensor of a tied pair is enough
    weights.rename(head, embedding);
    return true;
  }
  if (!weights.equal(head, embedding)) return false;
  weights.drop(head);
  return true;
}

template <class Model, class Config>
OpenFolder<Model> open(FolderWeights weights, const Config& config, const std::string& layer_path,
                       const JsonFile& file, Device device, DType dtype) {
  // Creating a model with many layers takes time, so missing layers are reported first.
  if (config.layers > 0 && !weights.absent())
    (void)weights.at(fmt::format(fmt::runtime(layer_path), config.layers - 1));
  const nn::MakeScope scope(device, dtype);
  auto model = std::make_unique<Model>(config);
  if (const auto form = packing_of(file)) {
    if (std::holds_alternative<LowBits>(*form)) model->freeze();
    try {
      nn::pack_layers(*model, *form);
    } catch (const Error& error) {
      file.fail(fmt::format("its weights cannot be stored as {}: {}", name(*form), error.what()));
    }
  }
  models::Origin origin{.config = file.json().dump()};
  weights.check(*model, origin);
  model->set_origin(std::move(origin));
  return {std::move(model), std::move(weights)};
}

template <class Model>
std::unique_ptr<Model> loaded(OpenFolder<Model> folder) {
  folder.weights.load(*folder.model);
  return std::move(folder.model);
}

// The parameters as they are, packed ones as bytes or as pairs with their positions.
std::vector<NamedTensor> own_tensors(const nn::ModuleBase& model, const Names& names) {
  std::vector<NamedTensor> tensors;
  for (const auto& list : {model.parameters(), model.buffers()})
    for (const nn::NamedVariable& v : list) {
      if (!v.variable.has_value()) v.variable.materialise();
      tensors.push_back({names.in_files(v.path), v.variable});
    }
  return tensors;
}

// The config that was read, with updated fields that depend on the model; or a complete config for
// a model created by ebb.
template <class Model>
FolderForm form(const Model& model, const nlohmann::json& fields, Names names,
                const std::optional<nn::WeightForm>& packed) {
  nlohmann::json config = fields;
  if (const std::string& read = model.origin().config; !read.empty()) {
    config = nlohmann::json::parse(read);
    for (const char* field : {"architectures", "tie_word_embeddings"})
      if (fields.contains(field)) config[field] = fields[field];
    config.erase("transformers_weights");
  }
  config.erase("quantization_config");
  if (packed) config["quantization_config"] = packing_field(*packed);
  const char* dtype = config.contains("dtype") ? "dtype" : "torch_dtype";
  config.erase("torch_dtype");  // where both are there, "dtype" counts
  config[dtype] = name(model.dtype());
  return {std::move(names), std::move(config), packed.has_value()};
}

void write(const nn::ModuleBase& model, const FolderForm& form, const fs::path& folder) {
  make_folder(folder);
  const Names& names = form.names;
  std::vector<NamedTensor> tensors =
      form.packed ? own_tensors(model, names) : file_tensors(model, names);
  for (const auto& [copy, original] : names.second_names)
    for (std::size_t i = 0, count = tensors.size(); i < count; ++i)
      if (tensors[i].name == names.in_files(original))
        tensors.push_back({names.in_files(copy), tensors[i].tensor});
  write_safetensors(folder / "model.safetensors", std::move(tensors), {{"format", "pt"}});
  write_config(form, folder);
}

}  // namespace

std::string model_type(const fs::path& folder) {
  const JsonFile config = read_config(folder);
  const std::string type = config.text("model_type");
  if (type != "gpt2" && !encoder_family(type) && !decoder_family(type))
    config.fail(fmt::format(
        "\"model_type\" is \"{}\", but ebb reads gpt2, llama, mistral, qwen2, qwen3, gpt_neox, "
        "bert, roberta and distilbert",
        type));
  return type;
}

OpenFolder<models::Gpt2> open_gpt2(const fs::path& folder, Device device, DType dtype) {
  const JsonFile file = read_config(folder, "gpt2");
  Fields fields(file);
  models::Gpt2Config config = read_gpt2(fields);
  fields.finish();
  FolderWeights weights(folder, gpt2_names(config));
  config.tied = resolve_tied(config.tied, weights, lm_head, "transformer.wte.weight", file);
  return open<models::Gpt2>(std::move(weights), config, "transformer.h.{}.ln_1.weight", file,
                            device, dtype);
}

OpenFolder<models::Llama> open_llama(const fs::path& folder, Device device, DType dtype) {
  const JsonFile file = read_config(folder);
  const std::string type = file.text("model_type");
  const auto family = decoder_family(type);
  if (!family)
    file.fail(
        fmt::format("\"model_type\" must be \"llama\" or one of its relatives here, but is "
                    "\"{}\"",
                    type));
  Fields fields(file);
  models::LlamaConfig config = read_llama(fields, *family);
  fields.finish();
  FolderWeights weights(folder, llama_names(config));
  config.tied = resolve_tied(config.tied, weights, lm_head, "model.embed_tokens.weight", file);
  return open<models::Llama>(std::move(weights), config, "model.layers.{}.input_layernorm.weight",
                             file, device, dtype);
}

namespace {

models::BertConfig encoder_config(const JsonFile& file) {
  const std::string type = file.text("model_type");
  const auto family = encoder_family(type);
  if (!family)
    file.fail(fmt::format(
        "\"model_type\" must be \"bert\", \"roberta\" or \"distilbert\" here, but is \"{}\"",
        type));
  Fields fields(file);
  models::BertConfig config = read_bert(fields, *family);
  fields.finish();
  return config;
}

constexpr const char* encoder_layer = "bert.encoder.layer.{}.output.dense.weight";

// Files may hold both names of a tensor that has two, or either.
void join_names(FolderWeights& weights, const std::string& kept, const std::string& other,
                const JsonFile& config) {
  if (!weights.has(other)) return;
  if (!weights.has(kept)) return weights.rename(other, kept);
  if (!weights.equal(kept, other))
    config.fail(fmt::format(
        "the folder's tensors that are \"{}\" and \"{}\" in BERT must be the same, but differ",
        kept, other));
  weights.drop(other);
}

}  // namespace

OpenFolder<models::BertClassifier> open_bert(const fs::path& folder, Device device, DType dtype) {
  const JsonFile file = read_config(folder);
  const models::BertConfig config = encoder_config(file);
  return open<models::BertClassifier>(
      FolderWeights(folder, bert_names(config, EncoderHead::classifier)), config, encoder_layer,
      file, device, dtype);
}

OpenFolder<models::BertMaskedLm> open_bert_masked_lm(const fs::path& folder, Device device,
                                                     DType dtype) {
  const JsonFile file = read_config(folder);
  models::BertConfig config = encoder_config(file);
  FolderWeights weights(folder, bert_names(config, EncoderHead::masked_lm));
  const std::string decoder = "cls.predictions.decoder.weight",
                    table = "bert.embeddings.word_embeddings.weight";
  join_names(weights, "cls.predictions.bias", "cls.predictions.decoder.bias", file);
  if (weights.has("cls.predictions.bias"))
    config.tied = resolve_tied(config.tied, weights, decoder, table, file);
  return open<models::BertMaskedLm>(std::move(weights), config, encoder_layer, file, device, dtype);
}

std::unique_ptr<models::Gpt2> load_gpt2(const fs::path& folder, Device device, DType dtype) {
  return loaded(open_gpt2(folder, device, dtype));
}
std::unique_ptr<models::Llama> load_llama(const fs::path& folder, Device device, DType dtype) {
  return loaded(open_llama(folder, device, dtype));
}
std::unique_ptr<models::BertClassifier> load_bert(const fs::path& folder, Device device,
                                                  DType dtype) {
  return loaded(open_bert(folder, device, dtype));
}
std::unique_ptr<models::BertMaskedLm> load_bert_masked_lm(const fs::path& folder, Device device,
                                                          DType dtype) {
  return loaded(open_bert_masked_lm(folder, device, dtype));
}

bool predicts_next_token(const fs::path& folder) {
  const std::string type = model_type(folder);
  return type == "gpt2" || decoder_family(type);
}

namespace {

// A token that config.json names; of a list, the first. Nothing if the model has no such token.
std::optional<std::int32_t> token_in(const nlohmann::json& config, const char* field,
                                     std::int64_t vocabulary) {
  const auto found = config.find(field);
  if (found == config.end()) return {};
  const nlohmann::json& value = found->is_array() && !found->empty() ? found->front() : *found;
  if (!value.is_number_integer()) return {};
  const auto token = value.get<std::int64_t>();
  if (token < 0 || token >= vocabulary) return {};
  return static_cast<std::int32_t>(token);
}

template <class Model>
ModelFolder model_folder(const fs::path& path, OpenFolder<Model> open) {
  ModelFolder folder;
  folder.path = path;
  Model* model = open.model.get();
  replace_model(folder, std::move(open.model));
  const nlohmann::json config = nlohmann::json::parse(model->origin().config);
  folder.end_of_text = token_in(config, "eos_token_id", model->vocabulary());
  folder.padding = token_in(config, "pad_token_id", model->vocabulary());
  folder.load = [model, weights = std::make_shared<FolderWeights>(std::move(open.weights))] {
    weights->load(*model);
  };
  return folder;
}

}  // namespace

template <class Model>
void replace_model(ModelFolder& folder, std::unique_ptr<Model> given) {
  Model* model = given.get();
  if constexpr (std::is_base_of_v<models::CausalLm, Model>)
    folder.lm = model;
  else if constexpr (std::is_base_of_v<models::MaskedLm, Model>)
    folder.masked_lm = model;
  else
    folder.classifier = model;
  folder.load = [path = folder.path] {
    throw ValueError(
        fmt::format("{}: its weights are of another shape than the model", path.string()));
  };
  folder.save = [model, path = folder.path](const fs::path& to) {
    save(*model, to);
    copy_tokenizer(path, to);
  };
  folder.module = std::move(given);
}
template void replace_model(ModelFolder&, std::unique_ptr<models::Gpt2>);
template void replace_model(ModelFolder&, std::unique_ptr<models::Llama>);
template void replace_model(ModelFolder&, std::unique_ptr<models::BertClassifier>);
template void replace_model(ModelFolder&, std::unique_ptr<models::BertMaskedLm>);

ModelFolder open_folder(const fs::path& folder, Device device, DType dtype, EncoderHead head) {
  const std::string type = model_type(folder);
  if (type == "gpt2") return model_folder(folder, open_gpt2(folder, device, dtype));
  if (decoder_family(type)) return model_folder(folder, open_llama(folder, device, dtype));
  if (head == EncoderHead::masked_lm)
    return model_folder(folder, open_bert_masked_lm(folder, device, dtype));
  return model_folder(folder, open_bert(folder, device, dtype));
}

void copy_tokenizer(const fs::path& from, const fs::path& to) {
  constexpr const char* names[] = {"tokenizer.json",
                                   "tokenizer_config.json",
                                   "special_tokens_map.json",
                                   "added_tokens.json",
                                   "vocab.json",
                                   "merges.txt",
                                   "vocab.txt",
                                   "tokenizer.model",
                                   "spiece.model",
                                   "sentencepiece.bpe.model",
                                   "chat_template.jinja",
                                   "generation_config.json"};
  std::error_code error;
  if (fs::equivalent(from, to, error)) return;
  for (const char* name : names) {
    const fs::path source = from / name, target = to / name;
    if (!fs::is_regular_file(source, error) || fs::equivalent(source, target, error)) continue;
    AtomicFile copy(target);
    data::File(source).each_piece([&](std::string_view piece) { copy.write(piece); });
    copy.commit();
  }
}

LoadedLm load_causal_lm(const fs::path& folder, Device device, DType dtype) {
  const auto both = [](auto model) {
    models::CausalLm* lm = model.get();
    return LoadedLm{std::move(model), lm};
  };
  const std::string type = model_type(folder);
  if (type == "gpt2") return both(load_gpt2(folder, device, dtype));
  if (decoder_family(type)) return both(load_llama(folder, device, dtype));
  throw FileError(fmt::format("{}: a {} model does not predict the next token; gpt2 and llama do",
                              folder.string(), type));
}

FolderForm form_of(const nn::ModuleBase& module, const std::optional<nn::WeightForm>& packed) {
  if (const auto* gpt2 = dynamic_cast<const models::Gpt2*>(&module))
    return form(*gpt2, write_gpt2(gpt2->config()), gpt2_names(gpt2->config()), packed);
  if (const auto* llama = dynamic_cast<const models::Llama*>(&module))
    return form(*llama, write_llama(llama->config()), llama_names(llama->config()), packed);
  const auto encoder = [&](const auto& model, EncoderHead head) {
    return form(model, write_bert(model.config(), head), bert_names(model.config(), head), packed);
  };
  if (const auto* bert = dynamic_cast<const models::BertClassifier*>(&module))
    return encoder(*bert, EncoderHead::classifier);
  if (const auto* bert = dynamic_cast<const models::BertMaskedLm*>(&module))
    return encoder(*bert, EncoderHead::masked_lm);
  throw ValueError("the model has no Hugging Face form");
}

std::optional<nn::WeightForm> packed_form(const nn::ModuleBase& model) {
  for (const nn::NamedVariable& p : model.parameters()) {
    if (p.packed) return p.packed->encoding.kind;
    if (p.pairs) return nn::Pairs{};
  }
  return {};
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw FileError(
        fmt::format("{}: cannot make the folder: {}", folder.string(), error.message()));
}

void write_config(const FolderForm& form, const fs::path& folder) {
  AtomicFile file(folder / "config.json");
  file.write(json_text(form.config, 2) + "\n");
  file.commit();
}

namespace {

// Pairs are stored as pairs, which loses nothing. With merged adapters the weights have no zeros.
FolderForm saved_form(const nn::ModuleBase& model) {
  const bool stay = nn::has_pairs(model) && nn::adapted_layers(model).empty();
  return form_of(model, stay ? packed_form(model) : std::nullopt);
}

}  // namespace

void save(const models::Gpt2& model, const fs::path& folder) {
  write(model, saved_form(model), folder);
}
void save(const models::Llama& model, const fs::path& folder) {
  write(model, saved_form(model), folder);
}
void save(const models::BertClassifier& model, const fs::path& folder) {
  write(model, saved_form(model), folder);
}
void save(const models::BertMaskedLm& model, const fs::path& folder) {
  write(model, saved_form(model), folder);
}

void save_packed(const nn::ModuleBase& module, const fs::path& folder) {
  const std::optional<nn::WeightForm> packed = packed_form(module);
  if (!packed) throw ValueError("save_packed: no weight of the model is packed");
  if (!nn::adapted_layers(module).empty())
    throw ValueError("save_packed: the model has adapters, which have a folder of their own");
  write(module, form_of(module, packed), folder);
}

}  // namespace ebb::io
