// Byte-pair encoding: a word begins as its characters, and the pair of neighbours that comes first
// in the list of merges is joined until no pair is in the list.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/json.h"
#include "text/characters.h"
#include "text/model.h"
#include "text/number_map.h"

namespace ebb::text {
namespace {

constexpr std::uint32_t no_merge = ~std::uint32_t{0};
// In bytes. Longer words are cut where no merge can join, and the parts are cached.
constexpr std::size_t long_word = 48;
// Symbols. Up to here, looking at all pairs for each merge is faster than a heap.
constexpr std::size_t few_symbols = 64;

struct Merge {
  std::uint32_t rank = no_merge;
  TokenId merged = 0;
};

using Symbol = ModelBuffers::Symbol;
using Candidate = ModelBuffers::Candidate;

// std::push_heap puts the largest element first, so this orders later candidates below earlier
// ones.
bool comes_later(const Candidate& a, const Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
}

struct BpeSettings {
  std::optional<TokenId> unknown;
  std::string prefix, suffix;  // of characters after a word's first, and of its last
  bool fuse_unknown = false, byte_fallback = false, ignore_merges = false;
};

class Bpe : public Model {
 public:
  Bpe(StringMap tokens, NumberMap<Merge> merges, BpeSettings settings)
      : Model(std::move(tokens)), merges_(std::move(merges)), settings_(std::move(settings)) {
    bytes_ = byte_tokens(this->tokens());
    has_all_bytes_ = std::find(bytes_.begin(), bytes_.end(), -1) == bytes_.end();
    ascii_.fill(-1);
    for (const auto& entry : this->tokens().entries())
      add_characters(this->tokens().key(entry), entry.value);
  }

  void encode(std::string_view word, ModelBuffers& buffers,
              std::vector<TokenId>& ids) const override {
    if (settings_.ignore_merges)
      if (const TokenId* whole = tokens().find(word)) {
        ids.push_back(*whole);
        return;
      }
    if (word.size() <= long_word || !settings_.prefix.empty() || !settings_.suffix.empty())
      return merge_word(word, buffers, ids);
    // If no token contains these two characters next to each other, no merge joins across them, and
    // the text before and after can be encoded separately.
    std::size_t begin = 0;
    Character last = character_at(word.data());
    for (std::size_t at = last.size; at < word.size();) {
      const Character c = character_at(word.data() + at);
      if (!neighbours_.find(pair_key(last.code, c.code)) && id_of(last.code) >= 0 &&
          id_of(c.code) >= 0) {
        encode_segment(word.substr(begin, at - begin), buffers, ids);
        begin = at;
      }
      last = c;
      at += c.size;
    }
    encode_segment(word.substr(begin), buffers, ids);
  }

 private:
  void add_characters(std::string_view token, TokenId id) {
    if (token.empty()) return;
    Character last = character_at(token.data());
    if (last.size == token.size()) {
      if (last.code < ascii_.size()) ascii_[last.code] = id;
      characters_.set(last.code, id);
    }
    for (std::size_t at = last.size; at < token.size();) {
      const Character c = character_at(token.data() + at);
      neighbours_.set(pair_key(last.code, c.code), true);
      last = c;
      at += c.size;
    }
  }

  TokenId id_of(char32_t character) const {
    if (character < ascii_.size()) return ascii_[character];
    const TokenId* id = characters_.find(character);
    return id ? *id : -1;
  }

  void encode_segment(std::string_view segment, ModelBuffers& buffers,
                      std::vector<TokenId>& ids) const {
    if (buffers.segments.append(segment, ids)) return;
    const std::size_t before = ids.size();
    merge_word(segment, buffers, ids);
    buffers.segments.add(segment, std::span(ids).subspan(before));
  }

  void merge_word(std::string_view word, ModelBuffers& buffers, std::vector<TokenId>& ids) const {
    std::vector<Symbol>& symbols = buffers.symbols;
    fill_symbols(word, buffers);
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) find_merge(symbols[i], symbols[i + 1].id);
    if (symbols.size() <= few_symbols) {
      merge_few(symbols);
      for (const Symbol& symbol : symbols) ids.push_back(symbol.id);
    } else {
      merge_many(symbols, buffers.candidates);
      for (std::int32_t at = 0; at >= 0; at = symbols[static_cast<std::size_t>(at)].after)
        ids.push_back(symbols[static_cast<std::size_t>(at)].id);
    }
  }

  void fill_symbols(std::string_view word, ModelBuffers& buffers) const {
    std::vector<Symbol>& symbols = buffers.symbols;
    symbols.clear();
    const auto add = [&](TokenId id) { symbols.push_back({id, no_merge, 0, -1, -1}); };
    bool unknown_waits = false;  // a pending unknown token, which the next may join
    for (std::size_t at = 0; at < word.size();) {
      const Character c = character_at(word.data() + at);
      const std::string_view bytes = word.substr(at, c.size);
      const bool is_first = at == 0;
      at += c.size;
      const TokenId id = is_plain(is_first, at == word.size())
                             ? id_of(c.code)
                             : decorated_id(bytes, is_first, at == word.size(), buffers.text);
      if (id >= 0) {
        if (unknown_waits) add(*settings_.unknown), unknown_waits = false;
        add(id);
      } else if (settings_.byte_fallback && is_plain(is_first, at == word.size()) &&
                 has_bytes(bytes)) {
        for (char byte : bytes) add(bytes_[static_cast<unsigned char>(byte)]);
      } else if (settings_.unknown) {
        if (unknown_waits && !settings_.fuse_unknown) add(*settings_.unknown);
        unknown_waits = true;
      }
    }
    if (unknown_waits) add(*settings_.unknown);
  }

  bool is_plain(bool is_first, bool is_last) const {
    return (is_first || settings_.prefix.empty()) && (!is_last || settings_.suffix.empty());
  }

  TokenId decorated_id(std::string_view character, bool is_first, bool is_last,
                       std::string& text) const {
    text.clear();
    if (!is_first) text += settings_.prefix;
    text += character;
    if (is_last) text += settings_.suffix;
    const TokenId* id = tokens().find(text);
    return id ? *id : -1;
  }

  bool has_bytes(std::string_view bytes) const {
    return has_all_bytes_ || std::all_of(bytes.begin(), bytes.end(), [&](char byte) {
             return bytes_[static_cast<unsigned char>(byte)] >= 0;
           });
  }

  void find_merge(Symbol& symbol, TokenId next) const {
    const Merge* merge = merges_.find(
        pair_key(static_cast<std::uint32_t>(symbol.id), static_cast<std::uint32_t>(next)));
    symbol.rank = merge ? merge->rank : no_merge;
    symbol.merged = merge ? merge->merged : 0;
  }

  void merge_few(std::vector<Symbol>& symbols) const {
    while (symbols.size() > 1) {
      std::size_t best = 0;
      for (std::size_t i = 1; i + 1 < symbols.size(); ++i)
        if (symbols[i].rank < symbols[best].rank) best = i;
      if (symbols[best].rank == no_merge) return;
      symbols[best].id = symbols[best].merged;
      symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
      if (best + 1 < symbols.size())
        find_merge(symbols[best], symbols[best + 1].id);
      else
        symbols[best].rank = no_merge;
      if (best > 0) find_merge(symbols[best - 1], symbols[best].id);
    }
  }

  void merge_many(std::vector<Symbol>& symbols, std::vector<Candidate>& heap) const {
    heap.clear();
    const auto count = static_cast<std::int32_t>(symbols.size());
    const auto at = [&](std::int32_t i) -> Symbol& { return symbols[static_cast<std::size_t>(i)]; };
    for (std::int32_t i = 0; i < count; ++i) {
      at(i).before = i - 1;
      at(i).after = i + 1 < count ? i + 1 : -1;
      if (at(i).rank != no_merge) heap.push_back({at(i).rank, i, at(i).merged});
    }
    std::make_heap(heap.begin(), heap.end(), comes_later);
    const auto renew = [&](std::int32_t i) {
      Symbol& symbol = at(i);
      symbol.rank = no_merge;
      if (symbol.after < 0) return;
      find_merge(symbol, at(symbol.after).id);
      if (symbol.rank == no_merge) return;
      heap.push_back({symbol.rank, i, symbol.merged});
      std::push_heap(heap.begin(), heap.end(), comes_later);
    };
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end(), comes_later);
      const Candidate best = heap.back();
      heap.pop_back();
      Symbol& left = at(best.at);
      // A later merge has changed the pair, or consumed its left symbol.
      if (left.rank != best.rank) continue;
      Symbol& right = at(left.after);
      left.id = best.merged;
      left.after = right.after;
      right.rank = no_merge;
      if (left.after >= 0) at(left.after).before = best.at;
      renew(best.at);
      if (left.before >= 0) renew(left.before);
    }
  }

  NumberMap<Merge> merges_;  // by the ids of the pair
  BpeSettings settings_;
  std::array<TokenId, 256> bytes_;  // of the tokens "<0x00>" ... "<0xFF>"; -1: there is none
  bool has_all_bytes_ = false;
  // Tokens of one character, and all pairs of neighbouring characters in tokens.
  std::array<TokenId, 128> ascii_;
  NumberMap<TokenId> characters_;
  NumberMap<bool> neighbours_;
};

// "a b" or ["a", "b"].
std::pair<std::string, std::string> read_pair(const nlohmann::json& merge, const Field& field,
                                              std::size_t index) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos)
      return {text.substr(0, space), text.substr(space + 1)};
  }
  Field(merge, fmt::format("{}[{}]", field.place(), index))
      .fail_expecting("two tokens, as a list or with a space between them");
}

NumberMap<Merge> read_merges(const Field& field, const StringMap& tokens,
                             const std::string& prefix) {
  if (!field.json().is_array()) field.fail_expecting("a list of pairs of tokens");
  NumberMap<Merge> merges;
  std::uint32_t rank = 0;
  for (const auto& merge : field.json()) {
    const auto [left, right] = read_pair(merge, field, rank);
    const auto id = [&](const std::string& token) {
      const TokenId* found = tokens.find(token);
      if (!found)
        Field(merge, fmt::format("{}[{}]", field.place(), rank))
            .fail(fmt::format("the token {} is not in the vocabulary", json_excerpt(token)));
      return static_cast<std::uint32_t>(*found);
    };
    const std::uint64_t key = pair_key(id(left), id(right));
    const std::string joined =
        left + (right.size() >= prefix.size() ? right.substr(prefix.size()) : std::string());
    merges.set(key, {rank, static_cast<TokenId>(id(joined))});
    ++rank;
  }
  return merges;
}

}  // namespace

std::unique_ptr<const Model> make_bpe(const Field& field) {
  field.allow_only({"type", "dropout", "unk_token", "continuing_subword_prefix",
                    "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges", "vocab",
                    "merges"});
  if (const auto dropout = field.find("dropout"); dropout && dropout->real() != 0.0)
    dropout->fail_expecting("null or 0: ids that depend on chance are not supported");
  StringMap tokens = read_vocabulary(field["vocab"]);
  BpeSettings settings;
  settings.prefix = field.text("continuing_subword_prefix", "");
  settings.suffix = field.text("end_of_word_suffix", "");
  settings.fuse_unknown = field.flag("fuse_unk", false);
  settings.byte_fallback = field.flag("byte_fallback", false);
  settings.ignore_merges = field.flag("ignore_merges", false);
  if (settings.byte_fallback && !(settings.prefix.empty() && settings.suffix.empty()))
    field["byte_fallback"].fail(
        "true is not supported together with a prefix or suffix of subwords");
  if (const auto unknown = field.find("unk_token")) {
    const TokenId* id = tokens.find(unknown->text());
    if (!id) unknown->fail_expecting("a token of the vocabulary");
    settings.unknown = *id;
  }
  NumberMap<Merge> merges = read_merges(field["merges"], tokens, settings.prefix);
  return std::make_unique<Bpe>(std::move(tokens), std::move(merges), std::move(settings));
}

}  // namespace ebb::text
