// Text as tokens of a model from a folder.
#pragma once

#include <filesystem>

#include "ebb/data/masked_tokens.h"
#include "ebb/data/sequences.h"
#include "ebb/data/text.h"
#include "ebb/io/hugging_face.h"
#include "workloads/text_data.h"

namespace ebb::workloads {

// The whole text of a file as one list of tokens: those of a .bin file, whose width is given by
// Options::tokens or found from its first tokens, or the text as the folder's tokenizer encodes it.
data::TokenStream running_text(const io::ModelFolder& folder, const std::filesystem::path& file,
                               const Options& options = {});

// The texts of a file of JSON lines, cut into parts of at most `sequence` predicted tokens. Each
// text is followed by the end-of-text token if the folder names one.
struct DocumentTokens {
  std::vector<data::TokenSequence> parts;
  std::vector<std::int64_t> first_part;  // of each document, and after the last
  std::int64_t documents() const { return static_cast<std::int64_t>(first_part.size()) - 1; }
};
DocumentTokens document_tokens(const io::ModelFolder& folder, const std::filesystem::path& file,
                               std::int64_t sequence);

// The labelled texts of a CSV file or of JSON lines, cut to `sequence` tokens inside the
// tokenizer's special tokens. Their labels count from `first_label`, by default from 1 in CSV files
// and from 0 in JSON lines.
std::vector<data::LabelledTokens> labelled_tokens(const io::ModelFolder& folder,
                                                  const std::filesystem::path& file,
                                                  std::int64_t sequence,
                                                  std::optional<std::int64_t> first_label = {});

// Whether a file gives each text a label: .csv, and .jsonl with "label" in its first line. An
// encoder's folder is a classifier for such a file, and predicts masked words in any other text.
bool has_labels(const std::filesystem::path& file);

// The text of a file, or the texts of JSON lines, in windows of at most `sequence` tokens, with the
// special tokens that the tokenizer adds around each.
struct MaskedText {
  std::vector<std::vector<std::int32_t>> windows;
  std::vector<std::int64_t> first_window;  // of each text of JSON lines that has a token
  data::MaskingOptions masking;            // by the folder's tokenizer
};
MaskedText masked_text(const io::ModelFolder& folder, const std::filesystem::path& file,
                       std::int64_t sequence);
// The masks that test data has in every run.
inline constexpr std::uint64_t test_masks = 0;

// Training and test data of Options::data for a model that predicts the next token or masked
// words, or for a classifier. Only texts of JSON lines can be packed.
TextData folder_text(const io::ModelFolder& folder, const Options& options, std::int64_t sequence);

}  // namespace ebb::workloads
