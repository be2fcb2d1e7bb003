// A model that predicts the next token, from a Hugging Face folder that was checked but not loaded:
// its memory can be planned before its weights are read.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "ebb/io/hugging_face.h"

namespace ebb::io {

struct OpenLm {
  LoadedLm model;              // parameters have shapes and no bytes
  std::function<void()> load;  // reads the weights; to be called once
};
OpenLm open_causal_lm(const std::filesystem::path& folder, Device device, DType dtype);

// The ids that end a text: "eos_token_id" of generation_config.json or, where that does not say, of
// config.json. Empty if neither says.
std::vector<std::int32_t> end_ids(const std::filesystem::path& folder);

// Settings of generation_config.json, or of config.json where that is missing, that make
// `generate` of transformers choose other tokens than the most likely ones, and that ebb does not
// have. "do_sample" is among them: drawing is the caller's choice here.
std::vector<std::string> unused_generation_settings(const std::filesystem::path& folder);

}  // namespace ebb::io
