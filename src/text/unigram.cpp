// Unigram: among all divisions of a word into tokens, chooses the one with the highest sum of
// scores.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "ebb/error.h"
#include "text/characters.h"
#include "text/model.h"
#include "text/trie.h"

namespace ebb::text {
namespace {

// An unknown character scores this much less than the token with the lowest score.
constexpr double unknown_penalty = 10.0;

// The score as the package `tokenizers` reads it: its decimal digits as a whole number, divided by
// a power of ten. That rounds twice and may change the last bit, which decides between ways of
// equal scores, such as "a" + "aa" and "aa" + "a".
double as_package_reads(double score) {
  char text[32];  // -1.2345678901234567e-308
  const auto end =
      std::to_chars(text, text + sizeof text, score, std::chars_format::scientific).ptr;
  const char* const mark = std::find(text, end, 'e');
  std::int64_t digits = 0;
  int exponent = 0, places = 0;
  bool after_point = false;
  for (const char* c = text; c != mark; ++c) {
    if (*c == '.') after_point = true;
    if (*c < '0' || *c > '9') continue;
    digits = 10 * digits + (*c - '0');
    places += after_point;
  }
  std::from_chars(mark[1] == '+' ? mark + 2 : mark + 1, end, exponent);
  const int power = places - exponent;
  if (power <= 0 || power > 22) return score;  // powers of ten above 10^22 are not exact
  double divisor = 1.0;
  for (int i = 0; i < power; ++i) divisor *= 10.0;
  return std::copysign(static_cast<double>(digits) / divisor, score);
}

class Unigram : public Model {
 public:
  Unigram(StringMap tokens, std::vector<double> scores, std::optional<TokenId> unknown,
          bool byte_fallback)
      : Model(std::move(tokens)), scores_(std::move(scores)), unknown_(unknown) {
    for (const auto& entry : this->tokens().entries())
      if (entry.size > 0) trie_.set(this->tokens().key(entry), entry.value);
    double lowest = std::numeric_limits<double>::infinity();
    for (double score : scores_) lowest = std::min(lowest, score);
    unknown_score_ = lowest - unknown_penalty;
    bytes_ = byte_tokens(this->tokens());
    byte_fallback_ = byte_fallback;
  }

  void encode(std::string_view word, ModelBuffers& buffers,
              std::vector<TokenId>& ids) const override {
    if (word.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
      throw ValueError("Unigram: a word of more than 2 GiB cannot be encoded");
    find_path(word, buffers.path);
    const std::size_t before = ids.size();
    std::size_t end = word.size(), unknown_end = 0;
    // Builds the ids from the end; adjacent unknown characters become one token.
    const auto add_unknown = [&](std::size_t begin) {
      if (unknown_end > 0) append_unknown(word.substr(begin, unknown_end - begin), ids);
      unknown_end = 0;
    };
    while (end > 0) {
      const auto& node = buffers.path[end];
      if (unknown_ && node.id == *unknown_) {
        if (unknown_end == 0) unknown_end = end;
      } else {
        add_unknown(end);
        ids.push_back(node.id);
      }
      end = static_cast<std::size_t>(node.start);
    }
    add_unknown(0);
    std::reverse(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end());
  }

 private:
  void find_path(std::string_view word, std::vector<ModelBuffers::PathNode>& path) const {
    path.assign(word.size() + 1, {0.0, -1, 0});
    for (std::size_t start = 0; start < word.size();) {
      const double so_far = path[start].score;
      const std::size_t character = character_at(word.data() + start).size;
      bool is_known = false;  // whether this character is a token by itself
      const auto offer = [&](std::size_t size, double score, TokenId id) {
        auto& node = path[start + size];
        if (node.start < 0 || so_far + score > node.score)
          node = {so_far + score, static_cast<std::int32_t>(start), id};
      };
      trie_.each_prefix(word.substr(start), [&](std::size_t size, TokenId id) {
        offer(size, scores_[static_cast<std::size_t>(id)], id);
        is_known = is_known || size == character;
      });
      if (!is_known) {
        if (!unknown_)
          throw ValueError(fmt::format("the character \"{}\" has no token, and \"unk_id\" is null",
                                       word.substr(start, character)));
        offer(character, unknown_score_, *unknown_);
      }
      start += character;
    }
  }

  // In reverse, as all ids of a word at this stage.
  void append_unknown(std::string_view text, std::vector<TokenId>& ids) const {
    if (const TokenId* id = tokens().find(text)) return ids.push_back(*id);
    const auto token_of = [&](char c) { return bytes_[static_cast<unsigned char>(c)]; };
    if (byte_fallback_ &&
        std::all_of(text.begin(), text.end(), [&](char c) { return token_of(c) >= 0; }))
      for (std::size_t i = text.size(); i-- > 0;) ids.push_back(token_of(text[i]));
    else
      ids.push_back(*unknown_);
  }

  std::vector<double> scores_;  // by id
  std::optional<TokenId> unknown_;
  double unknown_score_ = 0.0;
  bool byte_fallback_ = false;
  std::array<TokenId, 256> bytes_;
  Trie trie_;
};

}  // namespace

std::unique_ptr<const Model> make_unigram(const Field& field) {
  field.allow_only({"type", "unk_id", "vocab", "byte_fallback"});
  const Field vocabulary = field["vocab"];
  StringMap tokens;
  std::vector<double> scores;
  for (const Field& item : vocabulary.items()) {
    const auto& pair = item.json();
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string())
      item.fail_expecting("a token and its score");
    if (tokens.find(pair[0].get_ref<const std::string&>())) item.fail("this token comes twice");
    tokens.set(pair[0].get_ref<const std::string&>(), static_cast<TokenId>(scores.size()));
    scores.push_back(as_package_reads(Field(pair[1], item.place() + "[1]").real()));
  }
  if (scores.empty()) vocabulary.fail("at least one token is needed, but the list is empty");
  std::optional<TokenId> unknown;
  if (const auto id = field.find("unk_id"))
    unknown = static_cast<TokenId>(id->integer(0, static_cast<std::int64_t>(scores.size()) - 1));
  return std::make_unique<Unigram>(std::move(tokens), std::move(scores), unknown,
                                   field.flag("byte_fallback", false));
}

}  // namespace ebb::text
