// The part of a tokenizer that turns a word into token ids.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/text/tokenizer.h"
#include "text/json_field.h"
#include "text/string_map.h"

namespace ebb::text {

inline constexpr std::int64_t highest_id = (std::int64_t{1} << 31) - 2;

// The ids of words that came before. It is emptied when it is full.
class WordCache {
 public:
  // The ids of the word; nothing if it is not there.
  bool append(std::string_view word, std::vector<TokenId>& ids) const {
    if (word.size() > longest_word) return false;
    const std::int32_t* found = words_.find(word);
    if (!found) return false;
    const Range& range = ranges_[static_cast<std::size_t>(*found)];
    if (range.count == 1)
      ids.push_back(ids_[range.begin]);
    else
      ids.insert(ids.end(), ids_.begin() + range.begin, ids_.begin() + range.begin + range.count);
    return true;
  }
  void add(std::string_view word, std::span<const TokenId> ids) {
    if (word.size() > longest_word) return;
    if (words_.size() >= most_words) words_.clear(), ranges_.clear(), ids_.clear();
    words_.set(word, static_cast<std::int32_t>(ranges_.size()));
    ranges_.push_back(
        {static_cast<std::uint32_t>(ids_.size()), static_cast<std::uint32_t>(ids.size())});
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }

 private:
  // Together with longest_word, a bound of about 10 MiB of words; text seldom comes near it.
  static constexpr std::size_t most_words = 1 << 16;
  static constexpr std::size_t longest_word = 128;  // bytes
  struct Range {
    std::uint32_t begin, count;
  };
  StringMap words_;
  std::vector<Range> ranges_;
  std::vector<TokenId> ids_;
};

// Buffers that models use again and again, so that a word needs no allocation. For one thread.
struct ModelBuffers {
  struct Symbol {
    TokenId id;
    std::uint32_t rank;          // of the merge with the symbol after it; no_merge if there is none
    TokenId merged;              // what that merge makes
    std::int32_t before, after;  // neighbours in a long word; -1: none
  };
  struct Candidate {  // a merge in a long word
    std::uint32_t rank;
    std::int32_t at;  // symbol
    TokenId merged;
  };
  struct PathNode {  // the best way to the end of a prefix, in Unigram
    double score;
    std::int32_t start;  // of its last token; -1: no way was found
    TokenId id;
  };
  WordCache cache;     // of words
  WordCache segments;  // of parts of long words
  std::vector<Symbol> symbols;
  std::vector<Candidate> candidates;
  std::vector<PathNode> path;
  std::string text;
};

class Model {
 public:
  explicit Model(StringMap tokens) : tokens_(std::move(tokens)) {}
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Appends the ids of one word.
  virtual void encode(std::string_view word, ModelBuffers& buffers,
                      std::vector<TokenId>& ids) const = 0;

  const StringMap& tokens() const { return tokens_; }  // token to id

 private:
  StringMap tokens_;
};

// `field` is the member "model" of the file.
std::unique_ptr<const Model> make_model(const Field& field);

// One for each type.
std::unique_ptr<const Model> make_bpe(const Field& field);
std::unique_ptr<const Model> make_word_piece(const Field& field);
std::unique_ptr<const Model> make_unigram(const Field& field);

// {"token": id}; no id comes twice.
StringMap read_vocabulary(const Field& field);

// "<0x0A>": the token that stands for a byte of a character without a token of its own.
std::string byte_token(unsigned char byte);

// The ids of the tokens of all bytes, or -1 where one is missing.
std::array<TokenId, 256> byte_tokens(const StringMap& tokens);

}  // namespace ebb::text
