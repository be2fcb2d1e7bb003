#include "ebb/data/labelled_text.h"

#include <algorithm>
#include <limits>

#include "data/items.h"
#include "data/labelled_batch.h"

namespace ebb::data {
namespace {

constexpr std::int32_t start = 1, first_token = 2;

bool is_small(char c) { return c >= 'a' && c <= 'z'; }
bool is_large(char c) { return c >= 'A' && c <= 'Z'; }
bool in_word(char c) {
  return is_small(c) || is_large(c) || (c >= '0' && c <= '9') || (c & 0x80) != 0;
}

// Both write at most ids.size() tokens and return how many.
std::size_t byte_tokens(std::string_view text, std::span<std::int32_t> ids) {
  const std::size_t count = std::min(text.size(), ids.size());
  for (std::size_t i = 0; i < count; ++i)
    ids[i] = first_token + static_cast<unsigned char>(text[i]);
  return count;
}

std::size_t word_tokens(std::string_view text, std::int64_t vocabulary,
                        std::span<std::int32_t> ids) {
  const auto buckets = static_cast<std::uint64_t>(vocabulary - first_token);
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size() && count < ids.size();) {
    if (text[at] <= ' ' && !in_word(text[at])) {
      ++at;
      continue;
    }
    std::uint64_t hash = 0xCBF29CE484222325ull;
    const bool word = in_word(text[at]);
    do {
      const char c = text[at];
      const auto byte = static_cast<unsigned char>(is_large(c) ? c - 'A' + 'a' : c);
      hash = (hash ^ byte) * 0x100000001B3ull;
      ++at;
    } while (word && at < text.size() && in_word(text[at]));
    ids[count++] = first_token + static_cast<std::int32_t>(hash % buckets);
  }
  return count;
}

}  // namespace

LabelledTextDataset::LabelledTextDataset(LabelledTextsPtr texts, LabelledTextOptions options)
    : texts_(std::move(texts)), options_(options) {
  constexpr std::string_view who = "LabelledTextDataset";
  require(texts_ != nullptr && !texts_->texts.empty(), who, "texts are expected, but none came");
  require(texts_->texts.size() == texts_->labels.size(), who,
          fmt::format("{} texts came with {} labels", texts_->texts.size(), texts_->labels.size()));
  require(options_.sequence > 1, who,
          fmt::format("the start and at least one token must fit, but the sequence is {}",
                      options_.sequence));
  require(options_.tokens == TextTokens::bytes ||
              (options_.vocabulary > first_token &&
               options_.vocabulary <= std::numeric_limits<std::int32_t>::max()),
          who,
          fmt::format("a vocabulary of more than {} ids is expected, but {} came", first_token,
                      options_.vocabulary));
}

std::int64_t LabelledTextDataset::vocabulary() const {
  return options_.tokens == TextTokens::bytes ? first_token + 256 : options_.vocabulary;
}

std::vector<TensorType> LabelledTextDataset::types(std::int64_t batch) const {
  return labelled_types(batch, options_.sequence);
}

Batch LabelledTextDataset::batch(std::span<const std::int64_t> items, RandomState) const {
  check_items("LabelledTextDataset", items, size());
  return labelled_batch(items, options_.sequence, [&](std::int64_t item, auto ids) {
    const auto i = static_cast<std::size_t>(item);
    ids[0] = start;
    const auto rest = ids.subspan(1);
    const std::size_t count = options_.tokens == TextTokens::bytes
                                  ? byte_tokens(texts_->texts[i], rest)
                                  : word_tokens(texts_->texts[i], options_.vocabulary, rest);
    return Labelled{texts_->labels[i], 1 + count};
  });
}

}  // namespace ebb::data
