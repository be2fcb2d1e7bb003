#include "ebb/data/sequences.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "data/items.h"
#include "data/labelled_batch.h"
#include "data/windows.h"

namespace ebb::data {
namespace {

using Difference = std::vector<std::int32_t>::difference_type;

std::int64_t length_of(const TokenSequence& s) {
  return static_cast<std::int64_t>(s.tokens.size());
}

void check_sequence(std::string_view dataset, const SequenceOptions& options) {
  require(options.sequence > 0, dataset,
          fmt::format("a sequence must have tokens, but its length is {}", options.sequence));
}

void check_all(std::string_view dataset, const std::vector<TokenSequence>& sequences,
               const SequenceOptions& options) {
  check_sequence(dataset, options);
  for (const TokenSequence& s : sequences)
    require(length_of(s) <= options.sequence + 1 && s.first_target >= 1 &&
                s.first_target < length_of(s),
            dataset,
            fmt::format("a sequence of at most {} tokens with one to predict is expected, but {} "
                        "tokens came, to be predicted from {} on",
                        options.sequence + 1, length_of(s), s.first_target));
}

// Writes one sequence at `at` of x and y.
void place(const TokenSequence& s, Difference at, std::vector<std::int32_t>& x,
           std::vector<std::int32_t>& y) {
  std::copy(s.tokens.begin(), s.tokens.end() - 1, x.begin() + at);
  std::copy(s.tokens.begin() + s.first_target, s.tokens.end(), y.begin() + at + s.first_target - 1);
}

std::int64_t count_tokens(const std::vector<TokenSequence>& sequences) {
  std::int64_t total = 0;
  for (const TokenSequence& s : sequences) total += length_of(s);
  return total;
}

}  // namespace

std::vector<TokenSequence> cut_to(const TokenSequence& s, std::int64_t window) {
  require(window > 0, "cut_to", fmt::format("a window must have tokens, but has {}", window));
  const std::int64_t length = length_of(s), target = std::max<std::int64_t>(s.first_target, 1);
  require(target < length, "cut_to",
          fmt::format("a sequence of {} tokens has none to predict from {} on", length, target));
  std::vector<TokenSequence> parts;
  // A prompt that is too long loses its beginning: the first part begins late enough to reach the
  // end of the answer, but at least one token before the first target.
  std::int64_t begin = 0;
  if (length > window + 1 && target > 1)
    begin = std::min(target - 1, std::max<std::int64_t>(0, length - window - 1));
  std::int64_t first = target;
  while (first < length) {
    const std::int64_t end = std::min(length, begin + window + 1);
    parts.push_back({{s.tokens.begin() + begin, s.tokens.begin() + end}, first - begin});
    begin = end - 1, first = end;
  }
  return parts;
}

// --- SequenceDataset

SequenceDataset::SequenceDataset(std::vector<TokenSequence> sequences, SequenceOptions options)
    : sequences_(std::move(sequences)), options_(options) {
  check_all("SequenceDataset", sequences_, options_);
}

std::vector<TensorType> SequenceDataset::types(std::int64_t batch) const {
  return window_types(batch, options_.sequence, i32);
}

Batch SequenceDataset::batch(std::span<const std::int64_t> items, RandomState) const {
  check_items("SequenceDataset", items, size());
  const auto length = static_cast<std::size_t>(options_.sequence);
  std::vector<std::int32_t> x(items.size() * length, options_.padding), y(x.size(), no_target);
  for (std::size_t row = 0; row < items.size(); ++row) {
    const TokenSequence& s = sequences_[static_cast<std::size_t>(items[row])];
    place(s, static_cast<Difference>(row * length), x, y);
  }
  const Shape shape{static_cast<std::int64_t>(items.size()), options_.sequence};
  return {{Tensor::from(x, shape), Tensor::from(y, shape)}};
}

std::int64_t SequenceDataset::tokens() const { return count_tokens(sequences_); }

// --- PackedDataset

PackedDataset::PackedDataset(std::vector<TokenSequence> sequences, SequenceOptions options)
    : sequences_(std::move(sequences)), options_(options) {
  check_all("PackedDataset", sequences_, options_);
  std::vector<std::size_t> order(sequences_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return sequences_[a].tokens.size() > sequences_[b].tokens.size();
  });
  std::multimap<std::int64_t, std::size_t> room;  // tokens that are free → the item
  for (const std::size_t i : order) {
    const std::int64_t length = length_of(sequences_[i]) - 1;
    auto found = room.lower_bound(length);
    if (found == room.end()) {
      items_.emplace_back();
      found = room.emplace(options_.sequence, items_.size() - 1);
    }
    const auto [left, item] = *found;
    items_[item].push_back(i);
    room.erase(found);
    if (left > length) room.emplace(left - length, item);
  }
}

std::vector<TensorType> PackedDataset::types(std::int64_t batch) const {
  return std::vector<TensorType>(3, {{batch, options_.sequence}, i32});
}

Batch PackedDataset::batch(std::span<const std::int64_t> items, RandomState) const {
  check_items("PackedDataset", items, size());
  const auto length = static_cast<std::size_t>(options_.sequence);
  std::vector<std::int32_t> x(items.size() * length, options_.padding),
      y(x.size(), SequenceDataset::no_target), positions(x.size(), 0);
  for (std::size_t row = 0; row < items.size(); ++row) {
    auto at = static_cast<Difference>(row * length);
    for (const std::size_t i : items_[static_cast<std::size_t>(items[row])]) {
      const TokenSequence& s = sequences_[i];
      const Difference count = static_cast<Difference>(s.tokens.size()) - 1;
      place(s, at, x, y);
      std::iota(positions.begin() + at, positions.begin() + at + count, 0);
      at += count;
    }
  }
  const Shape shape{static_cast<std::int64_t>(items.size()), options_.sequence};
  return {{Tensor::from(x, shape), Tensor::from(y, shape), Tensor::from(positions, shape)}};
}

std::int64_t PackedDataset::tokens() const { return count_tokens(sequences_); }

// --- LabelledTokenDataset

LabelledTokenDataset::LabelledTokenDataset(std::vector<LabelledTokens> texts,
                                           SequenceOptions options)
    : texts_(std::move(texts)), options_(options) {
  constexpr std::string_view who = "LabelledTokenDataset";
  check_sequence(who, options_);
  for (const LabelledTokens& text : texts_)
    require(static_cast<std::int64_t>(text.tokens.size()) <= options_.sequence, who,
            fmt::format("a text of at most {} tokens is expected, but one has {}",
                        options_.sequence, text.tokens.size()));
}

std::vector<TensorType> LabelledTokenDataset::types(std::int64_t batch) const {
  return labelled_types(batch, options_.sequence);
}

Batch LabelledTokenDataset::batch(std::span<const std::int64_t> items, RandomState) const {
  check_items("LabelledTokenDataset", items, size());
  return labelled_batch(items, options_.sequence, [&](std::int64_t item, auto ids) {
    const LabelledTokens& text = texts_[static_cast<std::size_t>(item)];
    std::fill(std::copy(text.tokens.begin(), text.tokens.end(), ids.begin()), ids.end(),
              options_.padding);
    return Labelled{text.label, text.tokens.size()};
  });
}

}  // namespace ebb::data
