// A model folder that was checked but not loaded: the model has its parameters' shapes and no
// bytes, and the tensors are still in their files.
#pragma once

#include <filesystem>
#include <memory>

#include "io/hugging_face/family.h"

namespace ebb::io {

template <class Model>
struct OpenFolder {
  std::unique_ptr<Model> model;  // with its origin
  FolderWeights weights;
};

OpenFolder<models::Gpt2> open_gpt2(const std::filesystem::path& folder, Device device, DType dtype);
OpenFolder<models::Llama> open_llama(const std::filesystem::path& folder, Device device,
                                     DType dtype);
OpenFolder<models::BertClassifier> open_bert(const std::filesystem::path& folder, Device device,
                                             DType dtype);
OpenFolder<models::BertMaskedLm> open_bert_masked_lm(const std::filesystem::path& folder,
                                                     Device device, DType dtype);

}  // namespace ebb::io
