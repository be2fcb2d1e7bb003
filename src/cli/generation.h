// What `ebb generate` and `ebb fit --generate` share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "ebb/dtype.h"
#include "ebb/generate/generator.h"
#include "ebb/io/open_lm.h"

namespace ebb::cli {

// Of weights, keys and values: "fp32", "bf16" or "fp16".
DType generation_dtype(const std::string& precision);

// What `ebb fit --generate` is asked.
struct GenerationQuestion {
  std::filesystem::path model;
  std::string precision = "fp32", device = "cpu";
  Bytes budget;
  std::optional<std::int64_t> tokens;  // of each sequence; none: the model's context
  std::int64_t most = 0;               // sequences
};
// Prints how many sequences of so many tokens fit, as text or as one JSON document.
int fit_generation(const GenerationQuestion& question, bool as_json);

}  // namespace ebb::cli
