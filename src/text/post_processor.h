// The part of a tokenizer that adds special tokens before and after the ids of a text.
#pragma once

#include <vector>

#include "ebb/text/tokenizer.h"
#include "text/json_field.h"

namespace ebb::text {

struct SpecialTokens {
  std::vector<TokenId> before, after;
};

// `field` is the member "post_processor" of the file.
SpecialTokens read_post_processor(const Field& field);

}  // namespace ebb::text
