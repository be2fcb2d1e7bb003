// Folders as Hugging Face's libraries write them: config.json and model.safetensors, with the
// published parameter names. Weights are read one tensor at a time into the model's own bytes.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "ebb/models/bert.h"
#include "ebb/models/gpt2.h"
#include "ebb/models/llama.h"

namespace ebb::io {

// "gpt2", "bert" or "llama"; an error for any other model.
std::string model_type(const std::filesystem::path& folder);

std::unique_ptr<models::Gpt2> load_gpt2(const std::filesystem::path& folder, Device device,
                                        DType dtype);
std::unique_ptr<models::Llama> load_llama(const std::filesystem::path& folder, Device device,
                                          DType dtype);
std::unique_ptr<models::BertClassifier> load_bert(const std::filesystem::path& folder,
                                                  Device device, DType dtype);

// A GPT-2 or Llama folder, whichever it is: the model, seen as a module and as what it can do.
struct LoadedLm {
  std::unique_ptr<nn::ModuleBase> module;
  models::CausalLm* lm = nullptr;
};
LoadedLm load_causal_lm(const std::filesystem::path& folder, Device device, DType dtype);

// Writes config.json and model.safetensors; the folder is made if it is not there.
void save(const models::Gpt2& model, const std::filesystem::path& folder);
void save(const models::Llama& model, const std::filesystem::path& folder);
void save(const models::BertClassifier& model, const std::filesystem::path& folder);

}  // namespace ebb::io
