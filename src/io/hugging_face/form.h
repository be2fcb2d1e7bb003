// The form of a model as a folder: the names of its tensors and its config.json.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "ebb/nn/adapt.h"
#include "io/hugging_face/weights.h"

namespace ebb::io {

struct FolderForm {
  Names names;
  nlohmann::json config;
  bool packed = false;  // packed weights are written as they are
};

// The form of a model, which need not have values. `packed` is the form of weights that config.json
// names. A model of a family without a Hugging Face form is a ValueError.
FolderForm form_of(const nn::ModuleBase& model, const std::optional<nn::WeightForm>& packed = {});

// The form of a model's packed weights; nothing if no weight is packed.
std::optional<nn::WeightForm> packed_form(const nn::ModuleBase& model);

// Makes the folder if it is not there.
void make_folder(const std::filesystem::path& folder);
void write_config(const FolderForm& form, const std::filesystem::path& folder);

}  // namespace ebb::io
