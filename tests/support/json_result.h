// The JSON object that a verb prints as its last line.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "support/command_line.h"
#include "support/last_json.h"

namespace ebb::test {

using Json = nlohmann::json;

// Runs a verb that must succeed, with --json.
inline Json result_of(const std::string& arguments) {
  return last_json(run(arguments + " --json"));
}

// The options of a small GPT-2 in training.
inline std::string small_gpt2(int layers, int width, int heads, int eval_batches) {
  return "train --workload gpt2 --layers " + std::to_string(layers) + " --width " +
         std::to_string(width) + " --heads " + std::to_string(heads) +
         " --sequence 16 --vocabulary 61 --eval-batches " + std::to_string(eval_batches) + " ";
}

}  // namespace ebb::test
