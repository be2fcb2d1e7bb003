// Texts that are already tokens, one item each: for models that predict the next token, and for
// classifiers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "ebb/data/dataset.h"

namespace ebb::data {

// A line of a file of JSON lines: {"text": "..."}, or {"prompt": "...", "answer": "..."} with a
// loss on the answer alone.
struct Document {
  std::string prompt;
  std::string text;  // or the answer
  bool has_prompt = false;
};

// Whether a file's name says that it holds JSON lines: .jsonl, plain or compressed.
bool is_json_lines(const std::filesystem::path& path);

// Other keys and empty lines are ignored.
std::vector<Document> read_documents(const std::filesystem::path& path);

// Tokens; those from `first_target` on are predicted. The very first token never is.
struct TokenSequence {
  std::vector<std::int32_t> tokens;
  std::int64_t first_target = 1;
};

// Cuts `sequence` into parts of at most T + 1 tokens. Each predicted token is a target in exactly
// one part, and each part shares one token with the part before it. If a prompt does not fit
// together with the first token of its answer, the beginning of the prompt is left out.
std::vector<TokenSequence> cut_to(const TokenSequence& sequence, std::int64_t window);

struct SequenceOptions {
  std::int64_t sequence = 128;  // T
  std::int32_t padding = 0;     // a token for the places after a sequence; it has no effect
};

// x (B, T): a sequence without its last token, then padding. y (B, T): the token after each of x,
// or -100 where none is to be predicted.
class SequenceDataset : public Dataset {
 public:
  static constexpr std::int32_t no_target = -100;  // what the losses ignore

  // Every sequence has 2 to T + 1 tokens and at least one target.
  SequenceDataset(std::vector<TokenSequence> sequences, SequenceOptions options);

  std::int64_t size() const override { return static_cast<std::int64_t>(sequences_.size()); }
  std::vector<TensorType> types(std::int64_t batch) const override;
  Batch batch(std::span<const std::int64_t> items, RandomState augmentation) const override;

  std::int64_t tokens() const;  // of all sequences

 private:
  std::vector<TokenSequence> sequences_;
  SequenceOptions options_;
};

// Packs several sequences into each item, so that short ones leave little padding. Each sequence
// contributes its tokens except the last. x and y are as in SequenceDataset; positions (B, T) holds
// each token's place in its sequence, 0 for padding.
class PackedDataset : public Dataset {
 public:
  // As SequenceDataset's. Sequences are placed by length, longest first, each into the fullest item
  // with enough room, so the same sequences always give the same items.
  PackedDataset(std::vector<TokenSequence> sequences, SequenceOptions options);

  std::int64_t size() const override { return static_cast<std::int64_t>(items_.size()); }
  std::vector<TensorType> types(std::int64_t batch) const override;
  Batch batch(std::span<const std::int64_t> items, RandomState augmentation) const override;

  std::int64_t tokens() const;  // of all sequences

 private:
  std::vector<TokenSequence> sequences_;
  SequenceOptions options_;
  std::vector<std::vector<std::size_t>> items_;  // the sequences of each
};

struct LabelledTokens {
  std::vector<std::int32_t> tokens;
  std::int32_t label = 0;
};

// ids (B, T), labels (B), mask (B, T): true for the tokens of the text. Longer texts are an error.
class LabelledTokenDataset : public Dataset {
 public:
  LabelledTokenDataset(std::vector<LabelledTokens> texts, SequenceOptions options);

  std::int64_t size() const override { return static_cast<std::int64_t>(texts_.size()); }
  std::vector<TensorType> types(std::int64_t batch) const override;
  Batch batch(std::span<const std::int64_t> items, RandomState augmentation) const override;

 private:
  std::vector<LabelledTokens> texts_;
  SequenceOptions options_;
};

}  // namespace ebb::data
