// Metaspace marks the begin of words with a visible character in the place of spaces; its settings
// are those of a pre-tokenizer and of a decoder.
#pragma once

#include <string>

#include "text/json_field.h"

namespace ebb::text {

enum class PrependScheme : std::uint8_t { never, first, always };

struct MetaspaceSettings {
  std::string replacement;  // one character
  PrependScheme prepend = PrependScheme::always;
  bool split = true;
};

MetaspaceSettings read_metaspace(const Field& field);

}  // namespace ebb::text
