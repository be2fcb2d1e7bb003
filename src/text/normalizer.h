// The first part of a tokenizer: rewrites text before it is divided into words.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "text/json_field.h"

namespace ebb::text {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(std::string& text) const = 0;
};

// Throws if a step makes far more text than it got: a file with several such steps could fill any
// memory. The sizes are in bytes.
void limit_growth(const char* type, std::size_t before, std::size_t after);

// `field` is the member "normalizer" of the file.
std::unique_ptr<const Normalizer> make_normalizer(const Field& field);

// One for each group of types; null if the type is of another group.
std::unique_ptr<const Normalizer> make_unicode_normalizer(const Field& field);
std::unique_ptr<const Normalizer> make_bert_normalizer(const Field& field);
std::unique_ptr<const Normalizer> make_charsmap_normalizer(const Field& field);

}  // namespace ebb::text
