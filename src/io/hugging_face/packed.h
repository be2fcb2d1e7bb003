// Folders whose linear layers are packed (ebb/nn/adapt.h). Only ebb reads them. config.json has
//
//   {"quantization_config": {"quant_method": "ebb", "bits": "int4"}}
//     A packed weight is a tensor of bytes (ebb/quantised.h).
//   {"quantization_config": {"quant_method": "ebb", "pattern": "2:4"}}
//     Of a layer inside blocks, "NAME.weight" (outputs, inputs / 2) has the two of every four
//     weights that may be other than zero, and "NAME.positions" says which they are (ebb/pairs.h).
//
// A tensor that is not packed is packed when it is read.
#pragma once

#include <filesystem>
#include <optional>

#include "ebb/nn/adapt.h"
#include "io/json_file.h"

namespace ebb::io {

// The form that a folder's config names; nothing for plain weights. Another tool's quantisation is
// an error.
std::optional<nn::WeightForm> packing_of(const JsonFile& config);

// The field of config.json that names this form.
nlohmann::json packing_field(const nn::WeightForm& form);

// Writes a model with its packed weights as they are; an error if its linear layers are not packed.
void save_packed(const nn::ModuleBase& model, const std::filesystem::path& folder);

}  // namespace ebb::io
