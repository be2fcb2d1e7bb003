// Llama and the decoders that are Llama with other fields: Mistral, Qwen2, Qwen3 and GPT-NeoX.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/json.h"
#include "io/hugging_face/family.h"

namespace ebb::io {
namespace {

using models::DecoderFamily, models::LlamaConfig;

struct DecoderName {
  const char *type, *architecture;
  DecoderFamily family;
};
constexpr DecoderName decoder_families[] = {
    {"llama", "LlamaForCausalLM", DecoderFamily::llama},
    {"mistral", "MistralForCausalLM", DecoderFamily::mistral},
    {"qwen2", "Qwen2ForCausalLM", DecoderFamily::qwen2},
    {"qwen3", "Qwen3ForCausalLM", DecoderFamily::qwen3},
    {"gpt_neox", "GPTNeoXForCausalLM", DecoderFamily::gpt_neox}};

// The values that transformers uses if the file says nothing.
LlamaConfig usual(DecoderFamily family) {
  LlamaConfig c;
  c.family = family;
  c.eps = 1e-6;
  c.width = 4096, c.layers = 32, c.heads = 32, c.key_value_heads = 32;
  switch (family) {
    case DecoderFamily::llama:
      c.vocabulary = 32000, c.hidden = 11008, c.context = 2048;
      break;
    case DecoderFamily::mistral:
      c.vocabulary = 32000, c.hidden = 14336, c.context = 131072;
      c.key_value_heads = 8, c.window = 4096;
      break;
    case DecoderFamily::qwen2:
    case DecoderFamily::qwen3:
      c.vocabulary = 151936, c.hidden = 22016, c.context = 32768;
      c.attention_bias = family == DecoderFamily::qwen2;
      if (family == DecoderFamily::qwen2)
        c.output_bias = false;
      else
        c.head_norms = true, c.head_size = 128;
      break;
    case DecoderFamily::gpt_neox:
      c.vocabulary = 50432, c.width = 6144, c.hidden = 24576, c.layers = 44, c.heads = 64;
      c.context = 2048, c.eps = 1e-5, c.activation = nn::Activation::gelu;
      c.attention_bias = c.mlp_bias = c.layer_norms = c.parallel = true, c.gated = false;
      break;
  }
  return c;
}

double rope_base(Fields& f, const char* field, double otherwise) {
  if (!f.file().json().contains(field)) return f.value(field), otherwise;
  const nlohmann::json value = f.value(field);
  if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() <= 0.0)
    f.fail(fmt::format("\"{}\" must be a number above 0, but is {}", field, json_excerpt(value)));
  return value.get<double>();
}

// Qwen's windows: for some layers, and only if they are switched on.
void read_windows(Fields& f, LlamaConfig& c) {
  const bool used = f.flag("use_sliding_window", false);
  const auto window = f.file().json().contains("sliding_window")
                          ? f.size_or_null("sliding_window", 1)
                          : std::optional<std::int64_t>(4096);
  const std::int64_t first = f.size("max_window_layers", 0, 28);
  const nlohmann::json types = f.value("layer_types");
  const auto layers = static_cast<std::size_t>(c.layers);
  std::vector<bool> windowed(layers);
  for (std::size_t i = 0; i < layers; ++i)
    windowed[i] = used && window && static_cast<std::int64_t>(i) >= first;
  if (!types.is_null()) {
    if (!types.is_array() || types.size() != layers)
      f.fail(fmt::format("\"layer_types\" must be a list of {} names or null, but is {}", c.layers,
                         json_excerpt(types)));
    for (std::size_t i = 0; i < layers; ++i) {
      if (types[i] != "sliding_attention" && types[i] != "full_attention")
        f.fail(
            fmt::format("\"layer_types\" has {}, but ebb supports only \"full_attention\" and "
                        "\"sliding_attention\"",
                        json_excerpt(types[i])));
      windowed[i] = types[i] == "sliding_attention";
      if (windowed[i] && !(used && window))
        f.fail(
            "\"layer_types\" has \"sliding_attention\", but \"use_sliding_window\" is false or "
            "\"sliding_window\" is null");
    }
  }
  if (std::none_of(windowed.begin(), windowed.end(), [](bool w) { return w; })) return;
  c.window = *window, c.windowed = windowed;
}

void read_own_fields(Fields& f, LlamaConfig& c) {
  switch (c.family) {
    case DecoderFamily::llama:
      c.attention_bias = f.flag("attention_bias", false);
      c.mlp_bias = f.flag("mlp_bias", false);
      f.only("sliding_window", {nullptr});
      f.only("rope_interleaved", {false});
      f.only("is_llama_config", {true});
      // pretraining_tp splits products into parts with the same sum.
      f.harmless({"pretraining_tp", "max_sequence_length"});
      break;
    case DecoderFamily::mistral:
      if (f.file().json().contains("sliding_window"))
        c.window = f.size_or_null("sliding_window", 1).value_or(0);
      f.only("attention_bias", {false});
      f.only("mlp_bias", {false});
      break;
    case DecoderFamily::qwen3:
      c.attention_bias = f.flag("attention_bias", false);
      [[fallthrough]];
    case DecoderFamily::qwen2:
      read_windows(f, c);
      break;
    case DecoderFamily::gpt_neox:
      c.attention_bias = f.flag("attention_bias", true);
      c.parallel = f.flag("use_parallel_residual", true);
      c.hidden_dropout = f.probability("hidden_dropout", 0.0);
      f.harmless({"classifier_dropout", "pad_token_id"});
  }
}

void read_rotary(Fields& f, LlamaConfig& c) {
  const bool neox = c.family == DecoderFamily::gpt_neox;
  RopeFields usual{.base = rope_base(f, neox ? "rotary_emb_base" : "rope_theta", 10000.0)};
  if (neox) usual.share = f.positive("rotary_pct", 0.25);
  const RopeFields rope = read_rope(f, c.context, usual);
  c.rope_base = rope.base, c.rope = rope.rope;
  if (!neox) {
    f.only("partial_rotary_factor", {1.0, nullptr});
    if (rope.share != 1.0)
      f.fail(fmt::format("\"{}\" is {}, but ebb supports only 1.0 for {}", rope.share_field,
                         rope.share, f.file().text("model_type")));
    return;
  }
  const double turned = std::floor(static_cast<double>(c.width / c.heads) * rope.share);
  if (turned < 2.0 || turned > static_cast<double>(c.width / c.heads) ||
      std::fmod(turned, 2.0) != 0.0)
    f.fail(
        fmt::format("\"rotary_pct\" {} turns {} of the {} features of a head; an even number "
                    "of at least 2 is needed",
                    rope.share, turned, c.width / c.heads));
  c.rotary_size = static_cast<std::int64_t>(turned);
}

}  // namespace

std::optional<DecoderFamily> decoder_family(std::string_view type) {
  for (const DecoderName& row : decoder_families)
    if (type == row.type) return row.family;
  return {};
}

LlamaConfig read_llama(Fields& f, DecoderFamily family) {
  const bool neox = family == DecoderFamily::gpt_neox;
  f.common();
  LlamaConfig c = usual(family);
  c.vocabulary = f.size("vocab_size", 1, c.vocabulary);
  c.width = f.size("hidden_size", 1, c.width);
  c.hidden = f.size("intermediate_size", 1, c.hidden);
  c.layers = f.layers("num_hidden_layers", c.layers);
  c.heads = f.size("num_attention_heads", 1, c.heads);
  if (neox) {
    c.key_value_heads = c.heads;
    if (c.width % c.heads != 0)
      f.fail(fmt::format("\"hidden_size\" {} does not divide into {} heads", c.width, c.heads));
  } else {
    const bool given = f.file().json().contains("num_key_value_heads");
    const auto own = f.size_or_null("num_key_value_heads", 1);
    c.key_value_heads = own                                       ? *own
                        : given || family == DecoderFamily::llama ? c.heads
                                                                  : c.key_value_heads;
    if (f.file().json().contains("head_dim") || family != DecoderFamily::qwen3)
      c.head_size = f.size_or_null("head_dim", 1).value_or(0);
    else
      f.harmless({"head_dim"});
    c.padding = f.padding(c.vocabulary);
  }
  c.context = f.size("max_position_embeddings", 1, c.context);
  c.eps = f.positive(neox ? "layer_norm_eps" : "rms_norm_eps", c.eps);
  c.activation = f.activation("hidden_act", c.activation);
  c.attention_dropout = f.probability_or_null("attention_dropout").value_or(0.0);
  c.tied = f.flag("tie_word_embeddings", false);
  read_own_fields(f, c);
  read_rotary(f, c);
  f.only("is_causal", {true});
  // All weights are read, so none starts from initializer_range. Labels belong to other heads.
  f.harmless({"is_decoder", "initializer_range", "id2label", "label2id", "num_labels",
              "_num_labels", "problem_type"});
  return c;
}

Names llama_names(const LlamaConfig& c) {
  Names names{.prefix = "model.", .heads = {"lm_head"}};
  if (c.family == DecoderFamily::gpt_neox) {
    names.prefix = "gpt_neox.", names.heads = {"embed_out"};
    names.spelled = {{"gpt_neox.", "model."},
                     {".embed_in.", ".embed_tokens."},
                     {".final_layer_norm.", ".norm."},
                     {"embed_out.", "lm_head."},
                     {".attention.dense.", ".self_attn.o_proj."},
                     {".attention.query_key_value.", ".self_attn.query_key_value."},
                     {".mlp.dense_h_to_4h.", ".mlp.up_proj."},
                     {".mlp.dense_4h_to_h.", ".mlp.down_proj."}};
    names.fused = Fused{"query_key_value", {"q_proj", "k_proj", "v_proj"}, c.heads};
  }
  for (std::int64_t i = 0; i < c.layers; ++i) {  // tables that follow from the config
    names.buffers.insert(fmt::format("model.layers.{}.self_attn.rotary_emb.inv_freq", i));
    if (c.family == DecoderFamily::gpt_neox)
      for (const char* table : {"bias", "masked_bias", "rotary_emb.inv_freq"})
        names.buffers.insert(fmt::format("model.layers.{}.attention.{}", i, table));
  }
  names.buffers.insert("model.rotary_emb.inv_freq");
  return names;
}

nlohmann::json write_llama(const LlamaConfig& c) {
  const bool neox = c.family == DecoderFamily::gpt_neox;
  nlohmann::json fields{{"vocab_size", c.vocabulary},
                        {"hidden_size", c.width},
                        {"intermediate_size", c.hidden},
                        {"num_hidden_layers", c.layers},
                        {"num_attention_heads", c.heads},
                        {"max_position_embeddings", c.context},
                        {neox ? "layer_norm_eps" : "rms_norm_eps", c.eps},
                        {"hidden_act", nn::name(c.activation)},
                        {"attention_dropout", c.attention_dropout},
                        {"tie_word_embeddings", c.tied}};
  for (const DecoderName& row : decoder_families)
    if (row.family == c.family)
      fields["model_type"] = row.type, fields["architectures"] = {row.architecture};
  if (c.rope.scaling == models::RopeScaling::none && !neox)
    fields["rope_theta"] = c.rope_base;
  else
    fields["rope_parameters"] = write_rope(c);
  if (!neox) {
    fields["num_key_value_heads"] = c.key_value_heads;
    fields["head_dim"] = c.head_size ? c.head_size : c.width / c.heads;
    fields["pad_token_id"] = c.padding ? nlohmann::json(*c.padding) : nlohmann::json();
  }
  switch (c.family) {
    case DecoderFamily::llama:
      fields["attention_bias"] = c.attention_bias, fields["mlp_bias"] = c.mlp_bias;
      break;
    case DecoderFamily::mistral:
      fields["sliding_window"] = c.window ? nlohmann::json(c.window) : nlohmann::json();
      break;
    case DecoderFamily::qwen3:
      fields["attention_bias"] = c.attention_bias;
      [[fallthrough]];
    case DecoderFamily::qwen2:
      fields["use_sliding_window"] = c.window > 0;
      fields["sliding_window"] = c.window ? nlohmann::json(c.window) : nlohmann::json();
      fields["layer_types"] = nlohmann::json::array();
      for (std::int64_t i = 0; i < c.layers; ++i)
        fields["layer_types"].push_back(c.has_window(i, c.window + 1) ? "sliding_attention"
                                                                      : "full_attention");
      break;
    case DecoderFamily::gpt_neox:
      fields["attention_bias"] = c.attention_bias, fields["hidden_dropout"] = c.hidden_dropout;
      fields["use_parallel_residual"] = c.parallel;
      fields["rope_parameters"]["partial_rotary_factor"] =
          static_cast<double>(c.rotary_size) / static_cast<double>(c.width / c.heads);
  }
  return fields;
}

}  // namespace ebb::io
