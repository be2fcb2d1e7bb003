// Attributes of ops as JSON objects: {"axis": -1, "keep": true}. Numbers that JSON does not have
// are strings: "inf", "-inf", "nan".
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "ebb/op.h"

namespace ebb::io {

nlohmann::ordered_json attributes_json(const Attributes& attributes);

// Throws ValueError, which names the field, for a field that is missing, has the wrong type or does
// not belong to the op.
Attributes attributes_from_json(const Op& op, const nlohmann::json& object);

}  // namespace ebb::io
