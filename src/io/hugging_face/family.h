// One family of models in Hugging Face's format: how config.json and tensor names are read, and
// what is written for a model.
#pragma once

#include "ebb/io/hugging_face.h"
#include "io/hugging_face/fields.h"
#include "io/hugging_face/weights.h"

namespace ebb::io {

models::Gpt2Config read_gpt2(Fields& fields);
// The decoders that are Llama with other fields, by model_type; nothing for other models.
std::optional<models::DecoderFamily> decoder_family(std::string_view model_type);
models::LlamaConfig read_llama(Fields& fields, models::DecoderFamily family);
// The rotary settings. `usual_base` is used if the file says nothing.
struct RopeFields {
  double base = 10000.0;
  models::Rope rope = {};
  double share = 1.0;                                 // the share of a head that is rotated
  std::string share_field = "partial_rotary_factor";  // the field that gives it
};
RopeFields read_rope(Fields& fields, std::int64_t context, const RopeFields& usual);
nlohmann::json write_rope(const models::LlamaConfig& config);
std::optional<models::EncoderFamily> encoder_family(std::string_view model_type);
models::BertConfig read_bert(Fields& fields, models::EncoderFamily family);

Names gpt2_names(const models::Gpt2Config& config);
Names llama_names(const models::LlamaConfig& config);
Names bert_names(const models::BertConfig& config, EncoderHead head);

// Every field of the config. The dtype is added by the caller.
nlohmann::json write_gpt2(const models::Gpt2Config& config);
nlohmann::json write_llama(const models::LlamaConfig& config);
nlohmann::json write_bert(const models::BertConfig& config, EncoderHead head);

}  // namespace ebb::io
