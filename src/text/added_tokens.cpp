#include "text/added_tokens.h"

#include <fmt/core.h>

#include <unordered_map>

#include "text/characters.h"
#include "text/model.h"

namespace ebb::text {

std::vector<AddedToken> read_added_tokens(const Field& field, const StringMap& model_tokens) {
  std::unordered_map<TokenId, std::string_view> owners;
  for (const auto& entry : model_tokens.entries())
    owners.emplace(entry.value, model_tokens.key(entry));
  std::vector<AddedToken> tokens;
  StringMap seen;
  for (const Field& item : field.items()) {
    item.allow_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.id = static_cast<TokenId>(item["id"].integer(0, highest_id));
    token.content = item["content"].text();
    token.single_word = item.flag("single_word", false);
    token.strips_left = item.flag("lstrip", false);
    token.strips_right = item.flag("rstrip", false);
    token.special = item.flag("special", false);
    token.normalized = item.flag("normalized", !token.special);
    if (seen.find(token.content)) item["content"].fail("this token comes twice");
    seen.set(token.content, token.id);
    if (const TokenId* id = model_tokens.find(token.content); id && *id != token.id)
      item["id"].fail_expecting(fmt::format("{}, the id in the model's vocabulary", *id));
    const auto [owner, is_new] = owners.emplace(token.id, item["content"].text());
    if (!is_new && owner->second != token.content)
      item["id"].fail(fmt::format("{} is the id of \"{}\" already", token.id, owner->second));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens, bool normalized,
                                   const Normalizer* normalizer) {
  // Where the same text stands for two tokens, special ones come first.
  for (const bool special : {false, true})
    for (std::size_t i = tokens.size(); i-- > 0;) {
      const AddedToken& token = tokens[i];
      if (token.special != special || token.normalized != normalized) continue;
      std::string content = token.content;
      if (normalizer) normalizer->apply(content);
      if (content.empty()) continue;
      contents_.set(content, static_cast<std::int32_t>(tokens_.size()));
      first_bytes_[static_cast<unsigned char>(content[0])] = true;
      tokens_.push_back(token);
    }
}

AddedTokenFinder::Found AddedTokenFinder::find(std::string_view text, std::size_t at,
                                               std::size_t done) const {
  std::size_t size = 0;
  std::int32_t index = 0;
  contents_.each_prefix(text.substr(at), [&](std::size_t length, std::int32_t found) {
    size = length, index = found;
  });
  if (size == 0) return {nullptr, 0, 0, at + 1};
  const AddedToken& token = tokens_[static_cast<std::size_t>(index)];
  std::size_t begin = at, end = at + size;
  if (token.single_word && ((begin > 0 && is_word(last_character(text.substr(0, begin)).code)) ||
                            (end < text.size() && is_word(character_at(text.data() + end).code))))
    return {nullptr, 0, 0, end};
  if (token.strips_left)
    while (begin > done) {
      const Character c = last_character(text.substr(0, begin));
      if (!is_space(c.code)) break;
      begin -= c.size;
    }
  if (token.strips_right)
    while (end < text.size()) {
      const Character c = character_at(text.data() + end);
      if (!is_space(c.code)) break;
      end += c.size;
    }
  return {&token, begin, end, at + size};
}

}  // namespace ebb::text
