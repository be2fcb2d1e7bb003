// Folders whose linear layers are stored in few bits, as ebb packs them (ebb/quantised.h):
// config.json has {"quantization_config": {"quant_method": "ebb", "bits": "int4"}}, and a packed
// weight is a tensor of bytes. Only ebb reads them.
#pragma once

#include <filesystem>
#include <optional>

#include "ebb/nn/module.h"
#include "ebb/quantised.h"
#include "io/json_file.h"

namespace ebb::io {

// The bits that a folder's config names; nothing for plain weights. Another tool's quantisation is
// an error.
std::optional<LowBits> packing_of(const JsonFile& config);

// Writes a model whose linear layers are packed as it is; an error for other models.
void save_packed(const nn::ModuleBase& model, const std::filesystem::path& folder);

}  // namespace ebb::io
