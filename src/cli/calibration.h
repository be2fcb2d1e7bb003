// Windows of text for verbs that measure a language model on some data.
#pragma once

#include <filesystem>
#include <vector>

#include "ebb/data/text.h"
#include "ebb/models/causal_lm.h"
#include "ebb/quantised.h"
#include "ebb/train/train_step.h"

namespace ebb::cli {

// The tokens of a file: little-endian int32 if its name ends with .bin, otherwise UTF-8 text for
// the tokenizer.json in the model's folder.
data::TokenStream read_tokens(const std::filesystem::path& file,
                              const std::filesystem::path& model_folder, std::int64_t vocabulary);

struct WindowChoice {
  std::int64_t samples = 128, sequence = 0, batch = 4;
};

// At most `samples` windows, evenly spread over the tokens, in batches of one size: at most `batch`
// and a divisor of the number of windows. Windows are shorter than `sequence` if there are fewer
// tokens.
std::vector<Batch> spread_windows(const data::TokenStream& tokens, const WindowChoice& choice);

// Packs the linear layers of a model that has its weights by GPTQ (ebb/prune/gptq.h), on windows of
// the file.
void pack_on_data(nn::ModuleBase& module, models::CausalLm& lm, LowBits kind,
                  const std::filesystem::path& file, const std::filesystem::path& model_folder);

}  // namespace ebb::cli
