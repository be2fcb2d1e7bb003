// One family of models in Hugging Face's format: how config.json and tensor names are read, and
// what is written for a model.
#pragma once

#include "ebb/models/bert.h"
#include "ebb/models/gpt2.h"
#include "ebb/models/llama.h"
#include "io/hugging_face/fields.h"
#include "io/hugging_face/weights.h"

namespace ebb::io {

models::Gpt2Config read_gpt2(Fields& fields);
models::LlamaConfig read_llama(Fields& fields);
models::BertConfig read_bert(Fields& fields);

Names gpt2_names(const models::Gpt2Config& config);
Names llama_names(const models::LlamaConfig& config);
Names bert_names();

// Every field of the config. The dtype is added by the caller.
nlohmann::json write_gpt2(const models::Gpt2Config& config);
nlohmann::json write_llama(const models::LlamaConfig& config);
nlohmann::json write_bert(const models::BertConfig& config);

}  // namespace ebb::io
