#include "io/hugging_face/fields.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/json.h"
#include "io/hugging_face/packed.h"

namespace ebb::io {
namespace {

// The value as a whole number of 64 bits, if it is one.
std::optional<std::int64_t> whole(const nlohmann::json& value) {
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(most)))
    return std::nullopt;
  return value.get<std::int64_t>();
}

bool is_size(const nlohmann::json& value, std::int64_t low) {
  const auto number = whole(value);
  return number && *number >= low && *number <= largest_size;
}

std::string size_text(std::int64_t low) {
  return fmt::format("a whole number between {} and {}", low, largest_size);
}

bool is_probability(const nlohmann::json& value) {
  return value.is_number() && value.get<double>() >= 0.0 && value.get<double>() < 1.0;
}

constexpr const char* probability_text = "a number of at least 0 and below 1";

}  // namespace

nlohmann::json packing_field(const nn::WeightForm& form) {
  return {{"quant_method", "ebb"},
          {std::holds_alternative<nn::Pairs>(form) ? "pattern" : "bits", name(form)}};
}

std::optional<nn::WeightForm> packing_of(const JsonFile& config) {
  const auto found = config.json().find("quantization_config");
  if (found == config.json().end() || found->is_null()) return {};
  for (const nn::WeightForm& form : std::initializer_list<nn::WeightForm>{
           LowBits::int8, LowBits::int4, LowBits::nf4, nn::Pairs{}})
    if (*found == packing_field(form)) return form;
  config.fail(fmt::format(
      "\"quantization_config\" must be null or what ebb has written, {{\"quant_method\": \"ebb\", "
      "\"bits\": \"int8\", \"int4\" or \"nf4\"}} or {{\"quant_method\": \"ebb\", \"pattern\": "
      "\"2:4\"}}, but is {}",
      json_excerpt(*found)));
}

const nlohmann::json* Fields::find(const char* field) {
  known_.insert(field);
  const auto found = file_.json().find(field);
  return found == file_.json().end() ? nullptr : &*found;
}

void Fields::wrong(const char* field, const std::string& expected) const {
  fail(fmt::format("\"{}\" must be {}, but is {}", field, expected,
                   json_excerpt(file_.json()[field])));
}

std::int64_t Fields::size(const char* field, std::int64_t low, std::int64_t otherwise) {
  const nlohmann::json* value = find(field);
  if (!value) return otherwise;
  if (!is_size(*value, low)) wrong(field, size_text(low));
  return value->get<std::int64_t>();
}

std::int64_t Fields::layers(const char* field, std::int64_t otherwise) {
  const std::int64_t count = size(field, 0, otherwise);
  if (count > most_layers) wrong(field, fmt::format("at most {}", most_layers));
  return count;
}

const char* Fields::either(const char* field, const char* other) {
  const nlohmann::json *own = find(field), *second = find(other);
  if (own && second && *own != *second)
    fail(fmt::format("\"{}\" is {}, but \"{}\", another name for it, is {}", field,
                     json_excerpt(*own), other, json_excerpt(*second)));
  return second ? other : field;
}

std::optional<std::int64_t> Fields::size_or_null(const char* field, std::int64_t low) {
  const nlohmann::json* value = find(field);
  if (!value || value->is_null()) return std::nullopt;
  if (!is_size(*value, low)) wrong(field, size_text(low) + " or null");
  return value->get<std::int64_t>();
}

double Fields::positive(const char* field, double otherwise) {
  const nlohmann::json* value = find(field);
  if (!value) return otherwise;
  if (!value->is_number() || !std::isfinite(value->get<double>()) || value->get<double>() < 0.0)
    wrong(field, "a number of at least 0");
  return value->get<double>();
}

double Fields::probability(const char* field, double otherwise) {
  const nlohmann::json* value = find(field);
  if (!value) return otherwise;
  if (!is_probability(*value)) wrong(field, probability_text);
  return value->get<double>();
}

std::optional<double> Fields::probability_or_null(const char* field) {
  const nlohmann::json* value = find(field);
  if (!value || value->is_null()) return std::nullopt;
  if (!is_probability(*value)) wrong(field, fmt::format("{}, or null", probability_text));
  return value->get<double>();
}

bool Fields::flag(const char* field, bool otherwise) {
  const nlohmann::json* value = find(field);
  if (!value) return otherwise;
  if (!value->is_boolean()) wrong(field, "true or false");
  return value->get<bool>();
}

nn::Activation Fields::activation(const char* field, nn::Activation otherwise) {
  const nlohmann::json* value = find(field);
  if (!value) return otherwise;
  if (!value->is_string()) wrong(field, "the name of an activation");
  const auto found = nn::activation_named(value->get<std::string>());
  if (!found)
    fail(fmt::format("\"{}\" is {}, which is not an activation that ebb has", field,
                     json_excerpt(*value)));
  return *found;
}

std::optional<std::int64_t> Fields::padding(std::int64_t vocabulary) {
  constexpr const char* field = "pad_token_id";
  const nlohmann::json* value = find(field);
  if (!value || value->is_null()) return std::nullopt;
  const auto row = whole(*value);
  if (!row || *row < -vocabulary || *row >= vocabulary)
    wrong(field, fmt::format("a token below {} or null", vocabulary));
  return *row < 0 ? *row + vocabulary : *row;
}

nlohmann::json Fields::value(const char* field) {
  const nlohmann::json* found = find(field);
  return found ? *found : nlohmann::json();
}

void Fields::only(const char* field, std::initializer_list<nlohmann::json> accepted) {
  const nlohmann::json* value = find(field);
  if (!value || std::find(accepted.begin(), accepted.end(), *value) != accepted.end()) return;
  std::string list;
  for (const nlohmann::json& each : accepted)
    list += (list.empty() ? "" : " or ") + json_excerpt(each);
  fail(fmt::format("\"{}\" is {}, but ebb supports only {}", field, json_excerpt(*value), list));
}

void Fields::harmless(std::initializer_list<const char*> fields) {
  known_.insert(fields.begin(), fields.end());
}

void Fields::common() {
  // The origin of the file, and the form in which a library handles it.
  harmless({"model_type",
            "architectures",
            "transformers_version",
            "dtype",
            "torch_dtype",
            "_name_or_path",
            "name_or_path",
            "_commit_hash",
            "transformers.js_config",
            "torchscript",
            "gradient_checkpointing",
            "attn_implementation",
            "_attn_implementation",
            "_attn_implementation_autoset",
            "output_attentions",
            "output_hidden_states",
            "return_dict",
            "use_return_dict",
            "use_cache",
            "output_past",
            "tie_last_hidden_states",
            "chunk_size_feed_forward"});
  // Tokenizers and generation.
  harmless({"tokenizer_class",
            "prefix",
            "task_specific_params",
            "bos_token_id",
            "eos_token_id",
            "sep_token_id",
            "decoder_start_token_id",
            "forced_bos_token_id",
            "forced_eos_token_id",
            "max_length",
            "min_length",
            "do_sample",
            "early_stopping",
            "num_beams",
            "num_beam_groups",
            "diversity_penalty",
            "temperature",
            "top_k",
            "top_p",
            "typical_p",
            "repetition_penalty",
            "length_penalty",
            "no_repeat_ngram_size",
            "encoder_no_repeat_ngram_size",
            "encoder_repetition_penalty",
            "bad_words_ids",
            "num_return_sequences",
            "output_scores",
            "return_dict_in_generate",
            "remove_invalid_values",
            "exponential_decay_length_penalty",
            "suppress_tokens",
            "begin_suppress_tokens",
            "epsilon_cutoff",
            "eta_cutoff",
            "num_assistant_tokens",
            "num_assistant_tokens_schedule",
            "assistant_confidence_threshold",
            "assistant_lookbehind",
            "target_lookbehind"});
  harmless({"finetuning_task"});
  const nlohmann::json null;
  only("is_encoder_decoder", {false});
  only("add_cross_attention", {false});
  only("cross_attention_hidden_size", {null});
  only("tie_encoder_decoder", {false});
  only("use_bfloat16", {false});
  only("pruned_heads", {nlohmann::json::object(), null});
  known_.insert("quantization_config");
  (void)packing_of(file_);
  only("per_layer_config", {null});
  only("auto_map", {null});
  only("transformers_weights", {null, "model.safetensors"});
}

void Fields::finish() const {
  for (const auto& [field, value] : file_.json().items())
    if (!known_.contains(field)) {
      fail(
          fmt::format("the field \"{}\" (here {}) is not one ebb knows, and might change what the "
                      "model computes; if it does not, remove it from the file",
                      field, json_excerpt(value)));
    }
}

}  // namespace ebb::io
