// Text of a growing list of ids, returned as soon as its characters are complete.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ebb/text/tokenizer.h"

namespace ebb::cli {

class TextStream {
 public:
  explicit TextStream(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // The text that `ids` adds to what was returned before; empty while its last character is
  // incomplete. `ids` begins with the ids of the earlier call.
  std::string next(std::span<const std::int32_t> ids) {
    // Some earlier tokens are decoded too, to give the decoder the context that it may need, such
    // as whether a word begins the text.
    const std::string before = tokenizer_.decode(ids.subspan(context_, given_ - context_));
    const std::string now = tokenizer_.decode(ids.subspan(context_));
    if (now.size() <= before.size() || now.ends_with("\xEF\xBF\xBD")) return {};
    context_ = given_, given_ = ids.size();
    return now.substr(before.size());
  }

 private:
  const text::Tokenizer& tokenizer_;
  std::size_t context_ = 0, given_ = 0;  // the ids from `context_` to `given_` have been returned
};

}  // namespace ebb::cli
