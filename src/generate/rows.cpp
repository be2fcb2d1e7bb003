#include "generate/rows.h"

#include <algorithm>

#include "ebb/storage.h"

namespace ebb::generate {
namespace {

template <class T>
void write(const Tensor& to, std::span<const T> values) {
  to.node()->storage()->write(std::as_bytes(values));
}

template <class T>
Tensor constant(std::int64_t rows, std::int64_t count) {
  const std::vector<T> values(static_cast<std::size_t>(rows * count));
  return Tensor::from(values, rows == 1 && count == 1 ? Shape{1} : Shape{rows, count});
}

}  // namespace

Rows::Rows(const GenerationState& state, std::int64_t chunk)
    : state_(state),
      ids_(static_cast<std::size_t>(state.ids.shape()[0])),
      positions_(ids_.size(), -1),
      keys_(ids_.size()),
      token_values_(static_cast<std::size_t>(chunk)),
      position_values_(static_cast<std::size_t>(chunk)),
      tokens_(Tensor::from(token_values_, {1, chunk})),
      places_(Tensor::from(position_values_, {1, chunk})),
      row_(constant<std::int32_t>(1, 1)),
      last_(constant<std::int32_t>(1, 1)),
      key_(constant<std::int64_t>(1, 1)) {}

void Rows::feed_prompt(Program& prefill, std::span<const std::int32_t> tokens, std::int64_t first,
                       std::size_t row, std::int64_t key) {
  std::fill(token_values_.begin(), token_values_.end(), 0);
  std::fill(position_values_.begin(), position_values_.end(), -1);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    token_values_[i] = tokens[i];
    position_values_[i] = static_cast<std::int32_t>(first) + static_cast<std::int32_t>(i);
  }
  const std::int32_t at = static_cast<std::int32_t>(row),
                     last = static_cast<std::int32_t>(tokens.size()) - 1;
  write<std::int32_t>(tokens_, token_values_);
  write<std::int32_t>(places_, position_values_);
  write<std::int32_t>(row_, {&at, 1});
  write<std::int32_t>(last_, {&last, 1});
  write<std::int64_t>(key_, {&key, 1});
  prefill.feed(prompt_ids, tokens_);
  prefill.feed(prompt_positions, places_);
  prefill.feed(prompt_row, row_);
  prefill.feed(prompt_last, last_);
  prefill.feed(prompt_key, key_);
}

std::int32_t Rows::first_id() const {
  std::int32_t id = 0;
  state_.first.node()->storage()->read(std::as_writable_bytes(std::span(&id, 1)));
  return id;
}

void Rows::start(std::size_t row, std::int32_t id, std::int32_t position, std::int64_t key) {
  ids_[row] = id, positions_[row] = position, keys_[row] = key;
  changed_ = true;
}

void Rows::stop(std::size_t row) {
  ids_[row] = 0, positions_[row] = -1;
  changed_ = true;
}

void Rows::clear() {
  for (std::size_t row = 0; row < ids_.size(); ++row) stop(row);
}

void Rows::send() {
  if (!changed_) return;
  write<std::int32_t>(state_.ids, ids_);
  write<std::int32_t>(state_.positions, positions_);
  write<std::int64_t>(state_.keys, keys_);
  changed_ = false;
}

void Rows::receive() {
  state_.ids.node()->storage()->read(std::as_writable_bytes(std::span(ids_)));
  for (std::int32_t& position : positions_)
    if (position >= 0) ++position;
}

}  // namespace ebb::generate
