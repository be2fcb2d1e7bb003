// The part of a tokenizer that turns tokens back into text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/json_field.h"

namespace ebb::text {

class Decoder {
 public:
  virtual ~Decoder() = default;
  // Rewrites tokens; their concatenation at the end is the text.
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};

// `field` is the member "decoder" of the file.
std::unique_ptr<const Decoder> make_decoder(const Field& field);

// Decoders that join bytes; null if the type is not one of them.
std::unique_ptr<const Decoder> make_byte_decoder(const Field& field);

}  // namespace ebb::text
