#include <fmt/core.h>

#include <cmath>

#include "core/json.h"
#include "io/hugging_face/family.h"

namespace ebb::io {
namespace {

double rope_base(const Fields& f, const std::string& field, const nlohmann::json& value) {
  if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() <= 0.0)
    f.fail(fmt::format("\"{}\" must be a number above 0, but is {}", field, json_excerpt(value)));
  return value.get<double>();
}

// The base in one object of rotary settings, if it has one.
std::optional<double> rope_object(const Fields& f, const std::string& field,
                                  const nlohmann::json& object) {
  if (object.is_null()) return std::nullopt;
  if (!object.is_object())
    f.fail(fmt::format("\"{}\" must be an object or null, but is {}", field, json_excerpt(object)));
  std::optional<double> base;
  for (const auto& [key, value] : object.items()) {
    const std::string path = field + "." + key;
    if (key == "rope_theta") {
      base = rope_base(f, path, value);
    } else if (key == "rope_type" || key == "type") {
      if (value != "default")
        f.fail(fmt::format("\"{}\" is {}, but ebb supports only \"default\"", path,
                           json_excerpt(value)));
    } else if (key == "partial_rotary_factor") {
      if (value != 1.0)
        f.fail(fmt::format("\"{}\" is {}, but ebb supports only 1.0", path, json_excerpt(value)));
    } else {
      f.fail(
          fmt::format("\"{}\" (here {}) is not a setting of rotary embeddings of type "
                      "\"default\", the only ones ebb has",
                      path, json_excerpt(value)));
    }
  }
  return base;
}

// Newer files have the rotary settings in an object. rope_scaling has precedence over
// rope_parameters, and both over the plain field.
double read_rope(Fields& f) {
  const nlohmann::json scaling = f.value("rope_scaling"), parameters = f.value("rope_parameters"),
                       theta = f.value("rope_theta");
  const auto from_scaling = rope_object(f, "rope_scaling", scaling),
             from_parameters = rope_object(f, "rope_parameters", parameters);
  const double base =
      f.file().json().contains("rope_theta") ? rope_base(f, "rope_theta", theta) : 10000.0;
  if (scaling.is_object() && !scaling.empty()) return from_scaling.value_or(base);
  return from_parameters.value_or(base);
}

}  // namespace

models::LlamaConfig read_llama(Fields& f) {
  f.common();
  models::LlamaConfig c;
  c.vocabulary = f.size("vocab_size", 1, 32000);
  c.width = f.size("hidden_size", 1, 4096);
  c.hidden = f.size("intermediate_size", 1, 11008);
  c.layers = f.layers("num_hidden_layers", 32);
  c.heads = f.size("num_attention_heads", 1, 32);
  c.key_value_heads = f.size_or_null("num_key_value_heads", 1).value_or(c.heads);
  c.head_size = f.size_or_null("head_dim", 1).value_or(0);
  c.context = f.size("max_position_embeddings", 1, 2048);
  c.eps = f.positive("rms_norm_eps", 1e-6);
  c.activation = f.activation("hidden_act", nn::Activation::silu);
  c.attention_dropout = f.probability_or_null("attention_dropout").value_or(0.0);
  c.attention_bias = f.flag("attention_bias", false);
  c.mlp_bias = f.flag("mlp_bias", false);
  c.tied = f.flag("tie_word_embeddings", false);
  c.padding = f.padding(c.vocabulary);
  c.rope_base = read_rope(f);
  f.only("partial_rotary_factor", {1.0, nullptr});
  f.only("rope_interleaved", {false});
  f.only("is_llama_config", {true});
  f.only("sliding_window", {nullptr});
  f.only("is_causal", {true});
  // pretraining_tp splits products into parts with the same sum. All weights are read, so none
  // starts from initializer_range. Labels belong to other heads.
  f.harmless({"pretraining_tp", "is_decoder", "initializer_range", "max_sequence_length",
              "id2label", "label2id", "num_labels", "_num_labels", "problem_type"});
  return c;
}

Names llama_names(const models::LlamaConfig& c) {
  Names names{.prefix = "model.", .heads = {"lm_head"}};
  for (std::int64_t i = 0; i < c.layers; ++i)  // a table that follows from the config
    names.buffers.insert(fmt::format("model.layers.{}.self_attn.rotary_emb.inv_freq", i));
  names.buffers.insert("model.rotary_emb.inv_freq");
  return names;
}

nlohmann::json write_llama(const models::LlamaConfig& c) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", c.vocabulary},
          {"hidden_size", c.width},
          {"intermediate_size", c.hidden},
          {"num_hidden_layers", c.layers},
          {"num_attention_heads", c.heads},
          {"num_key_value_heads", c.key_value_heads},
          {"head_dim", c.head_size ? c.head_size : c.width / c.heads},
          {"max_position_embeddings", c.context},
          {"rms_norm_eps", c.eps},
          {"hidden_act", nn::name(c.activation)},
          {"rope_theta", c.rope_base},
          {"attention_dropout", c.attention_dropout},
          {"attention_bias", c.attention_bias},
          {"mlp_bias", c.mlp_bias},
          {"pad_token_id", c.padding ? nlohmann::json(*c.padding) : nlohmann::json()},
          {"tie_word_embeddings", c.tied}};
}

}  // namespace ebb::io
