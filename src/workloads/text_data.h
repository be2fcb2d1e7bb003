// Text to train on and text to test with.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ebb/data/text.h"
#include "ebb/workloads/workload.h"

namespace ebb::workloads {

struct TextData {
  data::DatasetPtr train, test;
  DataPart train_part, test_part;
  std::int64_t vocabulary = 0;
  std::optional<Limit> limit = {};
  std::optional<std::string> tokens = {};  // Options::tokens, as used
  std::string tokenizer_json = {};         // of the data's own vocabulary
};

// Markov text with tokens below `vocabulary`.
TextData generated_text(std::int64_t sequence, std::int64_t vocabulary, std::uint64_t seed);

// Windows of a text to train on and of another to test with.
TextData windows(const data::TokenStream& train, const data::TokenStream& test,
                 std::int64_t sequence);

// Windows of a running text. Its last tenth is held out for testing, at most 2000 windows and at
// least one; a text too short for that is an error.
TextData divided(const data::TokenStream& text, std::int64_t sequence);

}  // namespace ebb::workloads
