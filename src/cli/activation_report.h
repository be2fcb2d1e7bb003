// What `ebb plan` tells of activations in 8 bits.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "ebb/activation_bits.h"

namespace ebb::cli {

// Values of equal modules in different blocks are one row: h.*.mlp.c_fc.
std::string to_string(const CodedActivations& activations);
nlohmann::ordered_json to_json(const CodedActivations& activations);

}  // namespace ebb::cli
