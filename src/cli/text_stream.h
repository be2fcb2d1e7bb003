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
    std::string added = rest(ids);
    if (added.empty() || added.ends_with("\xEF\xBF\xBD")) return {};
    context_ = given_, given_ = ids.size();
    return added;
  }

  // The text of `ids`, all of them, that no call of `next` has returned. A last character that
  // stays incomplete becomes a replacement character.
  std::string rest(std::span<const std::int32_t> ids) const {
    // Some earlier tokens are decoded too, to give the decoder the context that it may need, such
    // as whether a word begins the text.
    const std::string before = tokenizer_.decode(ids.subspan(context_, given_ - context_));
    const std::string now = tokenizer_.decode(ids.subspan(context_));
    return now.size() > before.size() ? now.substr(before.size()) : std::string();
  }

 private:
  const text::Tokenizer& tokenizer_;
  std::size_t context_ = 0, given_ = 0;  // the ids from `context_` to `given_` have been returned
};

}  // namespace ebb::cli
