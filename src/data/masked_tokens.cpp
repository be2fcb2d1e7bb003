#include "ebb/data/masked_tokens.h"

#include <algorithm>
#include <limits>

#include "data/draws.h"
#include "data/items.h"
#include "ebb/data/sequences.h"

namespace ebb::data {
namespace {

constexpr std::string_view who = "MaskedTokenDataset";
constexpr std::int32_t no_target = SequenceDataset::no_target;
constexpr std::uint64_t masking_salt = 0x6D61736B696E67ull;

}  // namespace

MaskedTokenDataset::MaskedTokenDataset(std::vector<std::vector<std::int32_t>> texts,
                                       MaskingOptions options)
    : texts_(std::move(texts)), options_(std::move(options)) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  const std::int64_t vocabulary = options_.vocabulary;
  require(options_.sequence > 0, who,
          fmt::format("a sequence has at least 1 token, but {} came", options_.sequence));
  require(vocabulary > 0 && vocabulary <= most, who,
          fmt::format("a vocabulary has 1 to {} tokens, but {} came", most, vocabulary));
  require(options_.share > 0.0 && options_.share <= 1.0, who,
          fmt::format("a share above 0 and up to 1 is expected, but {} came", options_.share));
  const auto is_token = [&](std::int32_t token) { return token >= 0 && token < vocabulary; };
  require(is_token(options_.mask), who,
          fmt::format("the mask token must be below {}, but is {}", vocabulary, options_.mask));
  special_.resize(static_cast<std::size_t>(vocabulary));
  for (const std::int32_t token : options_.special)
    if (is_token(token)) special_[static_cast<std::size_t>(token)] = true;
  for (const std::vector<std::int32_t>& text : texts_) {
    require(!text.empty() && static_cast<std::int64_t>(text.size()) <= options_.sequence, who,
            fmt::format("a text of 1 to {} tokens is expected, but one has {}", options_.sequence,
                        text.size()));
    require(std::all_of(text.begin(), text.end(), is_token), who,
            fmt::format("a text has a token that is not below {}", vocabulary));
    require(std::any_of(text.begin(), text.end(),
                        [&](std::int32_t t) { return !special_[static_cast<std::size_t>(t)]; }),
            who, "a text has special tokens only, of which none is predicted");
  }
}

std::vector<TensorType> MaskedTokenDataset::types(std::int64_t batch) const {
  const TensorType ids{{batch, options_.sequence}, i32};
  return {ids, ids, {ids.shape, b8}};
}

void MaskedTokenDataset::fill(std::int64_t item, RandomState state, std::span<std::int32_t> ids,
                              std::span<std::int32_t> targets) const {
  const std::vector<std::int32_t>& text = texts_[static_cast<std::size_t>(item)];
  std::fill(std::copy(text.begin(), text.end(), ids.begin()), ids.end(), options_.padding);
  std::fill(targets.begin(), targets.end(), no_target);
  if (options_.fixed_seed) state = {*options_.fixed_seed, 0};
  Draws draws(state, mix(static_cast<std::uint64_t>(item) ^ masking_salt));
  const auto hide = [&](std::size_t at) {
    targets[at] = text[at];
    const double fate = draws.uniform();
    if (fate < 0.8)
      ids[at] = options_.mask;
    else if (fate < 0.9)
      ids[at] =
          static_cast<std::int32_t>(draws.below(static_cast<std::uint64_t>(options_.vocabulary)));
  };
  std::vector<std::size_t> open;  // tokens that may be chosen
  bool any = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (special_[static_cast<std::size_t>(text[i])]) continue;
    open.push_back(i);
    if (draws.uniform() < options_.share) hide(i), any = true;
  }
  if (!any) hide(open[draws.below(open.size())]);
}

Batch MaskedTokenDataset::batch(std::span<const std::int64_t> items, RandomState state) const {
  check_items(who, items, size());
  const auto length = static_cast<std::size_t>(options_.sequence);
  std::vector<std::int32_t> ids(items.size() * length), targets(ids.size());
  std::vector<std::uint8_t> mask(ids.size());
  for (std::size_t row = 0; row < items.size(); ++row) {
    fill(items[row], state, std::span(ids).subspan(row * length, length),
         std::span(targets).subspan(row * length, length));
    std::fill_n(mask.begin() + static_cast<std::ptrdiff_t>(row * length),
                texts_[static_cast<std::size_t>(items[row])].size(), std::uint8_t{1});
  }
  const std::vector<TensorType> type = types(static_cast<std::int64_t>(items.size()));
  return {{Tensor::from(ids, type[0].shape), Tensor::from(targets, type[1].shape),
           Tensor::from_bytes(std::as_bytes(std::span(mask)), type[2])}};
}

std::int64_t MaskedTokenDataset::tokens() const {
  std::int64_t count = 0;
  for (const auto& text : texts_) count += static_cast<std::int64_t>(text.size());
  return count;
}

std::int64_t MaskedTokenDataset::targets(std::int64_t item) const {
  require(options_.fixed_seed.has_value(), who,
          "the targets of an item are known before a batch is made only with a fixed seed");
  check_items(who, {&item, 1}, size());
  const auto length = static_cast<std::size_t>(options_.sequence);
  std::vector<std::int32_t> ids(length), targets(length);
  fill(item, {}, ids, targets);
  return static_cast<std::int64_t>(length) - std::count(targets.begin(), targets.end(), no_target);
}

}  // namespace ebb::data
