#include "ebb/io/adapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <map>
#include <set>

#include "core/json.h"
#include "ebb/error.h"
#include "ebb/io/atomic_file.h"
#include "ebb/io/safetensors.h"
#include "ebb/nn/adapt.h"
#include "io/hugging_face/family.h"

namespace ebb::io {
namespace {

namespace fs = std::filesystem;

const std::string prefix = "base_model.model.", end_a = ".lora_A.weight", end_b = ".lora_B.weight";

struct Config {
  std::int64_t rank = 0;
  double alpha = 0.0, dropout = 0.0;
};

Config read_config(const JsonFile& file) {
  Fields fields(file);
  const nlohmann::json null, none = nlohmann::json::object();
  if (!file.json().contains("peft_type")) file.fail("\"peft_type\" is missing: no adapter of PEFT");
  fields.only("peft_type", {"LORA"});
  Config config;
  config.rank = fields.size("r", 1, 8);
  config.alpha = fields.positive("lora_alpha", 8.0);
  config.dropout = fields.probability("lora_dropout", 0.0);
  // PEFT's rank-stabilised scale is alpha / √rank.
  if (fields.flag("use_rslora", false)) config.alpha *= std::sqrt(static_cast<double>(config.rank));
  // How layers were chosen does not matter: the tensors tell which layers there are.
  fields.harmless({"target_modules", "exclude_modules", "layers_to_transform", "layers_pattern",
                   "fan_in_fan_out", "base_model_name_or_path", "revision", "auto_mapping",
                   "task_type", "inference_mode", "peft_version", "megatron_core",
                   "qalora_group_size", "runtime_config", "ensure_weight_tying"});
  // How A and B were initialised. Other methods (PiSSA, OLoRA, LoftQ, CorDA) also change the
  // weights that the adapter is added to, each time it is loaded.
  fields.only("init_lora_weights", {true, false, "gaussian", "orthogonal", "eva", "mica", null});
  fields.only("bias", {"none"});
  fields.only("lora_bias", {false});
  fields.only("use_dora", {false});
  fields.only("use_qalora", {false});
  for (const char* field : {"rank_pattern", "alpha_pattern", "loftq_config"})
    fields.only(field, {none, null});
  for (const char* field :
       {"modules_to_save", "layer_replication", "target_parameters", "trainable_token_indices",
        "alora_invocation_tokens", "arrow_config", "corda_config", "eva_config", "kasa_config",
        "lora_ga_config", "megatron_config", "monteclora_config", "use_bdlora", "velora_config"})
    fields.only(field, {null});
  fields.finish();
  return config;
}

const std::string weight_end = ".weight";

// How files of the model's family name its parameters.
Names names_of(const nn::ModuleBase& model) {
  if (const auto* llama = dynamic_cast<const models::Llama*>(&model))
    return llama_names(llama->config());
  if (const auto* bert = dynamic_cast<const models::BertClassifier*>(&model))
    return bert_names(bert->config(), EncoderHead::classifier);
  if (const auto* bert = dynamic_cast<const models::BertMaskedLm*>(&model))
    return bert_names(bert->config(), EncoderHead::masked_lm);
  return {};
}

// The layer's name in transformers. Empty for a layer that is part of another one there.
std::string layer_in_files(const Names& names, const std::string& path) {
  if (names.part(path + weight_end)) return {};
  const std::string name = names.in_files(path + weight_end);
  return name.substr(0, name.size() - weight_end.size());
}

std::string required_layer_in_files(const Names& names, const std::string& path) {
  std::string name = layer_in_files(names, path);
  if (name.empty())
    throw ValueError(
        fmt::format("\"{}\" is a part of \"{}\" in transformers, so that PEFT's format has no "
                    "place for its adapter: write the whole model, with adapters added to its "
                    "weights (--merge), or adapt other layers",
                    path, names.in_files(names.part(path + weight_end)->first)));
  return name;
}

// The layer of each pair of tensors.
std::map<std::string, nn::Linear*> layers_of(const SafetensorsFile& file, const Config& config,
                                             nn::ModuleBase& model) {
  std::map<std::string, nn::Linear*> all, result;  // by their names in files
  const Names names = names_of(model);
  for (nn::Linear* layer : nn::linear_layers(model))
    if (!layer->stays_plain() && !names.part(layer->path() + weight_end))
      all[layer_in_files(names, layer->path())] = layer;
  const auto fail = [&](const std::string& name, const std::string& why) {
    throw FileError(fmt::format("{}: tensor \"{}\" {}", file.path().string(), name, why));
  };
  for (const auto& [name, entry] : file.entries()) {
    if (!name.starts_with(prefix) || (!name.ends_with(end_a) && !name.ends_with(end_b)))
      fail(name,
           fmt::format("is not of the form {}LAYER{} or {}LAYER{}", prefix, end_a, prefix, end_b));
    if (name.size() < prefix.size() + end_a.size()) fail(name, "names no layer");
    const std::string path = name.substr(prefix.size(), name.size() - prefix.size() - end_a.size());
    const auto found = all.find(path);
    if (found == all.end()) fail(name, "belongs to no linear layer of the model");
    const nn::Linear& layer = *found->second;
    const bool is_a = name.ends_with(end_a);
    const Shape expected = is_a ? Shape{config.rank, layer.in()} : Shape{layer.out(), config.rank};
    if (entry.type.shape != expected || !is_floating(entry.type.dtype))
      fail(name, fmt::format("is {}, but floating-point values of shape {} are expected",
                             to_string(entry.type), to_string(expected)));
    const std::string other = prefix + path + (is_a ? end_b : end_a);
    if (!file.entries().contains(other)) fail(name, fmt::format("has no partner \"{}\"", other));
    result[path] = found->second;
  }
  if (result.empty()) throw FileError(fmt::format("{}: it holds no adapter", file.path().string()));
  return result;
}

// The layers' names as PEFT would list them: the last parts of their names, if no other layer has
// the same.
std::set<std::string> target_modules(const nn::ModuleBase& model, const Names& names,
                                     const std::set<std::string>& paths) {
  std::set<std::string> ends, result;
  for (const std::string& path : paths) ends.insert(path.substr(path.rfind('.') + 1));
  for (const std::string& end : ends) {
    bool all = true;
    for (const nn::ModuleBase* module : model.modules()) {
      if (!dynamic_cast<const nn::Linear*>(module)) continue;
      const std::string path = layer_in_files(names, module->path());
      if (nn::matches(end, path)) all = all && paths.contains(path);
    }
    if (all) {
      result.insert(end);
      continue;
    }
    for (const std::string& path : paths)
      if (nn::matches(end, path)) result.insert(path);
  }
  return result;
}

}  // namespace

void load_adapter(const fs::path& folder, nn::ModuleBase& model) {
  if (!fs::is_directory(folder)) throw FileError(fmt::format("{}: not a folder", folder.string()));
  if (!nn::adapted_layers(model).empty())
    throw ValueError(
        fmt::format("{}: the model already has adapters, and takes no others", folder.string()));
  const Config config = read_config(JsonFile(folder / "adapter_config.json"));
  const SafetensorsFile file(folder / "adapter_model.safetensors");
  const auto layers = layers_of(file, config, model);
  model.freeze();
  for (const auto& [path, layer] : layers)
    layer->add_adapter({config.rank, config.alpha, config.dropout});
  std::map<std::string, Variable> parameters;
  for (const nn::NamedVariable& p : model.parameters()) parameters.emplace(p.path, p.variable);
  for (const auto& [path, layer] : layers)
    for (const std::string& end : {end_a, end_b})
      file.load(prefix + path + end, parameters.at(layer->path() + end));
}

void check_adapters(const nn::ModuleBase& model) {
  const Names names = names_of(model);
  for (const nn::Linear* layer : nn::adapted_layers(model))
    (void)required_layer_in_files(names, layer->path());
  const auto* read = dynamic_cast<const models::HasOrigin*>(&model);
  if (!read || read->origin().initialised.empty()) return;
  throw ValueError(
      fmt::format("the folder has no {}: they start from random numbers, stay so while adapters "
                  "are trained, and an adapter's folder does not hold them: write the whole model "
                  "(--merge)",
                  fmt::join(read->origin().initialised, ", ")));
}

void save_adapter(const nn::ModuleBase& model, const fs::path& folder, const std::string& base) {
  const std::vector<const nn::Linear*> layers = nn::adapted_layers(model);
  if (layers.empty())
    throw ValueError(fmt::format("{}: the model has no adapters to save", folder.string()));
  check_adapters(model);
  const Names names = names_of(model);
  const nn::LoraOptions& options = layers.front()->adapter_options();
  bool in_out = false;
  std::map<std::string, std::string> in_files;  // by the paths of the adapters' parameters
  std::set<std::string> adapted;
  for (const nn::Linear* layer : layers) {
    if (layer->adapter_options() != options)
      throw ValueError(fmt::format(
          "the adapters of \"{}\" and \"{}\" differ in rank, alpha or dropout, which one folder "
          "cannot say",
          layers.front()->path(), layer->path()));
    in_out = in_out || layer->layout() == WeightLayout::in_out;
    const std::string name = required_layer_in_files(names, layer->path());
    adapted.insert(name);
    for (const std::string& end : {end_a, end_b}) in_files[layer->path() + end] = name + end;
  }
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw FileError(
        fmt::format("{}: cannot make the folder: {}", folder.string(), error.message()));
  std::vector<NamedTensor> tensors;
  for (const nn::NamedVariable& p : model.parameters()) {
    const auto found = in_files.find(p.path);
    if (found == in_files.end()) continue;
    if (!p.variable.has_value()) p.variable.materialise();
    tensors.push_back({prefix + found->second, p.variable});
  }
  write_safetensors(folder / "adapter_model.safetensors", std::move(tensors), {{"format", "pt"}});
  const nlohmann::json config = {{"peft_type", "LORA"},
                                 {"r", options.rank},
                                 {"lora_alpha", options.alpha},
                                 {"lora_dropout", options.dropout},
                                 {"target_modules", target_modules(model, names, adapted)},
                                 {"bias", "none"},
                                 {"fan_in_fan_out", in_out},
                                 {"use_rslora", false},
                                 {"use_dora", false},
                                 {"modules_to_save", nullptr},
                                 {"inference_mode", true},
                                 {"base_model_name_or_path", base}};
  AtomicFile file(folder / "adapter_config.json");
  file.write(json_text(config, 2) + "\n");
  file.commit();
}

}  // namespace ebb::io
