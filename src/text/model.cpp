#include "text/model.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <unordered_map>

#include "core/json.h"

namespace ebb::text {

std::unique_ptr<const Model> make_model(const Field& field) {
  // Files of old versions of `tokenizers` have no type; only BPE has merges.
  const auto named = field.find("type");
  if (!named && !field.find("merges")) field.fail("the field \"type\" is missing");
  const std::string type = named ? named->text() : "BPE";
  if (type == "BPE") return make_bpe(field);
  if (type == "WordPiece") return make_word_piece(field);
  if (type == "Unigram") return make_unigram(field);
  named->fail_expecting("\"BPE\", \"WordPiece\" or \"Unigram\"");
}

StringMap read_vocabulary(const Field& field) {
  if (!field.json().is_object()) field.fail_expecting("an object of tokens and ids");
  StringMap tokens;
  std::unordered_map<TokenId, const std::string*> owners;
  for (auto entry = field.json().begin(); entry != field.json().end(); ++entry) {
    const auto place = [&] {
      return fmt::format("{}[{}]", field.place(), json_excerpt(entry.key()));
    };
    if (!entry->is_number_unsigned() || entry->get<std::uint64_t>() > std::uint64_t{highest_id})
      Field(*entry, place()).fail_expecting(fmt::format("an id from 0 to {}", highest_id));
    const auto id = entry->get<TokenId>();
    const auto [owner, is_new] = owners.emplace(id, &entry.key());
    if (!is_new)
      Field(*entry, place())
          .fail(
              fmt::format("the token {} has the id {} already", json_excerpt(*owner->second), id));
    tokens.set(entry.key(), id);
  }
  return tokens;
}

std::string byte_token(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

std::array<TokenId, 256> byte_tokens(const StringMap& tokens) {
  std::array<TokenId, 256> ids;
  for (std::size_t byte = 0; byte < ids.size(); ++byte) {
    const TokenId* id = tokens.find(byte_token(static_cast<unsigned char>(byte)));
    ids[byte] = id ? *id : -1;
  }
  return ids;
}

}  // namespace ebb::text
