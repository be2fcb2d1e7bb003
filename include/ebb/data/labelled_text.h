// Texts with a class each, from CSV or JSON lines, as padded token ids for a classifier.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "ebb/data/dataset.h"

namespace ebb::data {

struct LabelledTexts {
  std::int64_t classes = 0;
  std::vector<std::string> texts;
  std::vector<std::int32_t> labels;  // 0 to classes - 1
};

using LabelledTextsPtr = std::shared_ptr<const LabelledTexts>;

// Files may be compressed (.gz). Labels count from `first_label`, 0 or 1: other labels are errors.

// CSV quoted as RFC 4180 says, in AG News's layout: a label, then fields that are joined by spaces.
// A first record whose label has no digit is a header and left out. Every record must have as many
// fields as the first.
LabelledTextsPtr read_labelled_csv(const std::filesystem::path& path, std::int64_t classes,
                                   std::int64_t first_label = 1);

// One object a line, {"text": "...", "label": 0}; other keys and empty lines are ignored.
LabelledTextsPtr read_labelled_jsonl(const std::filesystem::path& path, std::int64_t classes,
                                     std::int64_t first_label = 0);

// In both, ids 0 (padding) and 1 (start of text) are reserved.
enum class TextTokens {
  bytes,         // 2 + byte: 258 ids
  hashed_words,  // 2 + FNV-1a hash modulo vocabulary - 2, of runs of ASCII letters, digits and
                 // bytes above 127, letters taken as small; each other visible byte is a word of
                 // its own
};

struct LabelledTextOptions {
  std::int64_t sequence = 128;  // T
  TextTokens tokens = TextTokens::hashed_words;
  std::int64_t vocabulary = 8192;  // of hashed words
};

// ids int32 (B, T), labels int32 (B), mask bool (B, T): true where ids are not padding. Longer
// texts are cut.
class LabelledTextDataset : public Dataset {
 public:
  explicit LabelledTextDataset(LabelledTextsPtr texts, LabelledTextOptions options = {});

  std::int64_t size() const override { return static_cast<std::int64_t>(texts_->texts.size()); }
  std::int64_t vocabulary() const;  // every id is below it
  std::vector<TensorType> types(std::int64_t batch) const override;
  Batch batch(std::span<const std::int64_t> items, RandomState augmentation) const override;

 private:
  LabelledTextsPtr texts_;
  LabelledTextOptions options_;
};

}  // namespace ebb::data
