// Weights of the pattern 2:4 that are stored without their zeros (ebb/pairs.h), from files.
#pragma once

#include <string>

#include "ebb/io/safetensors.h"
#include "ebb/nn/module.h"

namespace ebb::io {

// The path of the positions of a weight.
std::string positions_path(const std::string& weight);

// Fills a weight from its whole matrix, which has the weight's own shape and is on the CPU. If that
// does not have the pattern, this is a FileError that begins with `what`.
void assign_pairs(const Tensor& matrix, const nn::NamedVariable& weight, const std::string& what);

// Fills the positions of a weight from a tensor of its type. Others than two of each four are an
// error.
void load_positions(const SafetensorsFile& file, const std::string& name,
                    const nn::NamedVariable& weight);

}  // namespace ebb::io
