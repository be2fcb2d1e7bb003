// Text as tokens of a model from a folder.
#pragma once

#include <filesystem>

#include "ebb/data/sequences.h"
#include "ebb/data/text.h"
#include "ebb/io/hugging_face.h"
#include "workloads/text_data.h"

namespace ebb::workloads {

// The whole text of a file as one list of tokens: those of a file of `ebb tokenize` (.bin), or the
// text's under the folder's tokenizer.
data::TokenStream running_text(const io::ModelFolder& folder, const std::filesystem::path& file);

// The texts of a file of JSON lines, each with the end-of-text token after it if the folder names
// one, cut into parts of at most `sequence` tokens to be predicted.
struct DocumentTokens {
  std::vector<data::TokenSequence> parts;
  std::vector<std::int64_t> first_part;  // of each document, and after the last
};
DocumentTokens document_tokens(const io::ModelFolder& folder, const std::filesystem::path& file,
                               std::int64_t sequence);

// The labelled texts of a CSV file or of JSON lines, cut to `sequence` tokens inside the
// tokenizer's special tokens.
std::vector<data::LabelledTokens> labelled_tokens(const io::ModelFolder& folder,
                                                  const std::filesystem::path& file,
                                                  std::int64_t sequence);

bool is_json_lines(const std::filesystem::path& file);

// Training and test data for a model that predicts the next token, or for a classifier.
TextData folder_text(const io::ModelFolder& folder, const std::filesystem::path& file,
                     std::int64_t sequence);

}  // namespace ebb::workloads
