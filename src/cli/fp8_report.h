// Reports for a plan in fp8 how many products are in fp8, and which are not and why.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "ebb/precision.h"

namespace ebb::cli {

std::string to_string(const Fp8Products& products);
nlohmann::ordered_json to_json(const Fp8Products& products);

}  // namespace ebb::cli
