// WordPiece: repeatedly takes the longest token at the beginning of the rest of the word. Tokens
// that continue a word have a prefix ("##").
#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/characters.h"
#include "text/model.h"
#include "text/trie.h"

namespace ebb::text {
namespace {

class WordPiece : public Model {
 public:
  WordPiece(StringMap tokens, TokenId unknown, const std::string& prefix, std::int64_t most)
      : Model(std::move(tokens)), unknown_(unknown), most_characters_(most) {
    for (const auto& entry : this->tokens().entries()) {
      const std::string_view token = this->tokens().key(entry);
      if (token.empty()) continue;
      first_.set(token, entry.value);
      if (token.size() > prefix.size() && token.starts_with(prefix))
        next_.set(token.substr(prefix.size()), entry.value);
    }
  }

  void encode(std::string_view word, ModelBuffers&, std::vector<TokenId>& ids) const override {
    const auto characters = std::count_if(word.begin(), word.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    });
    if (characters > most_characters_) return ids.push_back(unknown_);
    const std::size_t before = ids.size();
    for (std::size_t at = 0; at < word.size();) {
      std::size_t longest = 0;
      TokenId id = unknown_;
      (at == 0 ? first_ : next_).each_prefix(word.substr(at), [&](std::size_t size, TokenId found) {
        longest = size, id = found;
      });
      if (longest == 0) {  // then the whole word is unknown
        ids.resize(before);
        return ids.push_back(unknown_);
      }
      ids.push_back(id);
      at += longest;
    }
  }

 private:
  TokenId unknown_;
  std::int64_t most_characters_;  // of a word; a longer one is unknown
  Trie first_, next_;             // tokens that begin a word; that continue one, without the prefix
};

}  // namespace

std::unique_ptr<const Model> make_word_piece(const Field& field) {
  field.allow_only(
      {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
  StringMap tokens = read_vocabulary(field["vocab"]);
  const Field unknown = field["unk_token"];
  const TokenId* id = tokens.find(unknown.text());
  if (!id) unknown.fail_expecting("a token of the vocabulary");
  const TokenId unknown_id = *id;
  const auto most = field.find("max_input_chars_per_word");
  return std::make_unique<WordPiece>(std::move(tokens), unknown_id,
                                     field.text("continuing_subword_prefix", "##"),
                                     most ? most->integer(0, highest_id) : 100);
}

}  // namespace ebb::text
