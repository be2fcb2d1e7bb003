// A tensor of a file into a weight that is stored in few bits, without the whole model ever being
// in memory at full size.
#pragma once

#include "ebb/io/safetensors.h"
#include "ebb/nn/module.h"

namespace ebb::io {

// Packs the tensor `name` into `weight`, which has the same shape. A value that is not finite is an
// error.
void load_packed(const SafetensorsFile& file, const std::string& name,
                 const nn::NamedVariable& weight);

}  // namespace ebb::io
