// The part of a tokenizer that divides normalized text into words.
#pragma once

#include <memory>

#include "text/json_field.h"
#include "text/pieces.h"

namespace ebb::text {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(Pieces& pieces) const = 0;
};

// The pre-tokenizers of a file, in order, and whether words are still plain bytes at the end. If
// ByteLevel is the last step, words are written in its alphabet only before the model sees them:
// words in the cache do not need that.
struct PreTokenizers {
  std::vector<std::unique_ptr<const PreTokenizer>> steps;
  bool gives_bytes = false;
};

// `field` is the member "pre_tokenizer" of the file.
PreTokenizers make_pre_tokenizers(const Field& field);

// Simple steps; null if the type is not one of them.
std::unique_ptr<const PreTokenizer> make_simple_pre_tokenizer(const Field& field);

}  // namespace ebb::text
