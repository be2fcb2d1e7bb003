// What a model looks like as a folder: the names of its tensors and its config.json.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "ebb/nn/module.h"
#include "ebb/quantised.h"
#include "io/hugging_face/weights.h"

namespace ebb::io {

struct FolderForm {
  Names names;
  nlohmann::json config;
  bool packed = false;  // weights in few bits are written as they are
};

// Of a model that need not have values. `packed`: the bits that config.json names. A model of a
// family without a Hugging Face form is a ValueError.
FolderForm form_of(const nn::ModuleBase& model, std::optional<LowBits> packed = {});

// The bits of a model's packed weights; nothing if none is.
std::optional<LowBits> packed_bits(const nn::ModuleBase& model);

// Makes the folder if it is not there.
void make_folder(const std::filesystem::path& folder);
void write_config(const FolderForm& form, const std::filesystem::path& folder);

}  // namespace ebb::io
