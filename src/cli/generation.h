// What `ebb generate` and `ebb fit --generate` share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "ebb/dtype.h"
#include "ebb/generate/generator.h"
#include "ebb/io/open_lm.h"

namespace CLI {
class App;
}

namespace ebb::cli {

// The dtype of weights, keys and values for "fp32", "bf16" or "fp16".
DType generation_dtype(const std::string& precision);

// The options of both verbs: --bits for weights, and --cache-bits for keys and values.
struct GenerationBits {
  std::optional<std::string> weights, cache;  // "8" or "4"; "8"

  void add_options(CLI::App& app);
  // Must be called before weights are loaded.
  void apply(const io::OpenLm& open) const;
  nn::CacheForm cache_form() const;
};

// The question that `ebb fit --generate` answers.
struct GenerationQuestion {
  std::filesystem::path model;
  std::string precision = "fp32", device = "cpu";
  GenerationBits bits;
  Bytes budget;
  std::optional<std::int64_t> tokens;  // of each sequence; without a value, the model's context
  std::int64_t most = 0;               // largest number of sequences to consider
};
// Prints how many sequences of that many tokens fit, as text or as one JSON document.
int fit_generation(const GenerationQuestion& question, bool as_json);

}  // namespace ebb::cli
