// Folders as Hugging Face's libraries write them: config.json and model.safetensors, or several
// files with an index, with the published parameter names. Weights are read one tensor at a time
// into the model's own bytes.
//
// Nothing is ignored: every field of config.json is used, known to change no result, or refused,
// and every tensor is used or refused. docs/hugging-face.md lists them.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ebb/models/bert.h"
#include "ebb/models/bert_masked_lm.h"
#include "ebb/models/gpt2.h"
#include "ebb/models/llama.h"

namespace ebb::io {

// The family, such as "gpt2"; an error for a model that ebb does not have.
std::string model_type(const std::filesystem::path& folder);

std::unique_ptr<models::Gpt2> load_gpt2(const std::filesystem::path& folder, Device device,
                                        DType dtype);
// Llama, Mistral, Qwen2, Qwen3 or GPT-NeoX.
std::unique_ptr<models::Llama> load_llama(const std::filesystem::path& folder, Device device,
                                          DType dtype);
// BERT, RoBERTa or DistilBERT. The folder may lack the classifier, or the classifier and the
// pooler: those parameters start from random values and are named in origin().initialised. Tensors
// of the heads for pre-training are named in origin().unused.
std::unique_ptr<models::BertClassifier> load_bert(const std::filesystem::path& folder,
                                                  Device device, DType dtype);
// The same encoders with the head for masked words. The folder may lack the head, which then starts
// from random values; a classifier and a pooler are named in origin().unused.
std::unique_ptr<models::BertMaskedLm> load_bert_masked_lm(const std::filesystem::path& folder,
                                                          Device device, DType dtype);

// Whether the folder's model predicts the next token; an error for a model that ebb does not have.
bool predicts_next_token(const std::filesystem::path& folder);

// What is put on top of BERT, RoBERTa or DistilBERT. Folders of one head can be opened with
// another.
enum class EncoderHead : std::uint8_t { classifier, masked_lm };

// A folder that was checked, to be trained further. The model has its parameters' shapes, which is
// enough to plan with; `load` reads their values.
struct ModelFolder {
  std::filesystem::path path;
  std::unique_ptr<nn::ModuleBase> module;
  // The same model by what it does; one of them is set.
  models::CausalLm* lm = nullptr;
  models::TextClassifier* classifier = nullptr;
  models::MaskedLm* masked_lm = nullptr;
  std::optional<std::int32_t> end_of_text, padding;  // tokens that config.json names
  std::function<void()> load;
  // Writes config.json and model.safetensors, and the tokenizer's files along.
  std::function<void(const std::filesystem::path& folder)> save;
};
ModelFolder open_folder(const std::filesystem::path& folder, Device device, DType dtype,
                        EncoderHead head = EncoderHead::classifier);

// Copies the files of a tokenizer and of generation's settings; missing files are skipped.
void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to);

// A model that predicts the next token, through both of its interfaces.
struct LoadedLm {
  std::unique_ptr<nn::ModuleBase> module;
  models::CausalLm* lm = nullptr;
};
LoadedLm load_causal_lm(const std::filesystem::path& folder, Device device, DType dtype);

// Writes config.json and model.safetensors; the folder is made if it is not there. A model that was
// read from a folder keeps all the fields of its config.json. Adapters are added to the weights,
// and weights in few bits are written in the model's dtype: the folder holds a plain model. Weights
// that are stored without the zeros of their pattern 2:4 are written so if there are no adapters.
void save(const models::Gpt2& model, const std::filesystem::path& folder);
void save(const models::Llama& model, const std::filesystem::path& folder);
void save(const models::BertClassifier& model, const std::filesystem::path& folder);
void save(const models::BertMaskedLm& model, const std::filesystem::path& folder);

}  // namespace ebb::io
