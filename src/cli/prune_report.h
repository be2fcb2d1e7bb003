// The result of `ebb prune` as text.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace ebb::cli {

// `result` is what --json prints.
void print_pruned(const nlohmann::ordered_json& result);

}  // namespace ebb::cli
