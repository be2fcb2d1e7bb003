// Tokens that are found in the text as they are written, before it is divided into words.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/text/tokenizer.h"
#include "text/json_field.h"
#include "text/normalizer.h"
#include "text/string_map.h"
#include "text/trie.h"

namespace ebb::text {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool single_word = false;  // found only where no word continues before or after it
  bool strips_left = false, strips_right = false;  // takes the spaces beside it
  bool normalized = false;                         // searched in normalized text
  bool special = false;
};

// `field` is the member "added_tokens" of the file. An id must be that of the model's vocabulary if
// the token is in it, and otherwise be new.
std::vector<AddedToken> read_added_tokens(const Field& field, const StringMap& model_tokens);

// Finds some of the added tokens: at each place the longest.
class AddedTokenFinder {
 public:
  // With a normalizer, searches for the normalized contents.
  AddedTokenFinder(const std::vector<AddedToken>& tokens, bool normalized,
                   const Normalizer* normalizer);

  // Calls take_text(part) and take_token(id) for what the text consists of, from left to right. No
  // part is empty.
  template <class TakeText, class TakeToken>
  void divide(std::string_view text, TakeText&& take_text, TakeToken&& take_token) const {
    std::size_t done = 0;
    if (!tokens_.empty())
      for (std::size_t at = 0; at < text.size();) {
        if (!first_bytes_[static_cast<unsigned char>(text[at])]) {
          ++at;
          continue;
        }
        const Found found = find(text, at, done);
        at = found.next;
        if (!found.token) continue;
        if (found.begin > done) take_text(text.substr(done, found.begin - done));
        take_token(found.token->id);
        done = found.end;
      }
    if (done < text.size()) take_text(text.substr(done));
  }

 private:
  struct Found {
    const AddedToken* token;  // null: none here
    std::size_t begin, end;   // with the spaces that it takes
    std::size_t next;         // where the search goes on
  };
  Found find(std::string_view text, std::size_t at, std::size_t done) const;

  std::vector<AddedToken> tokens_;
  Trie contents_;                        // to the index of a token
  std::array<bool, 256> first_bytes_{};  // that contents begin with
};

}  // namespace ebb::text
