#include <fmt/core.h>

#include "ebb/error.h"
#include "ebb/nn/decode_scope.h"
#include "ebb/nn/layers.h"

namespace ebb::nn {
namespace {

std::int64_t head_size(std::int64_t width, const MultiHeadOptions& options) {
  const std::int64_t groups = options.key_value_heads ? options.key_value_heads : options.heads;
  if (options.heads < 1 || options.head_size < 0 || groups < 1 || options.heads % groups != 0)
    throw ValueError(
        fmt::format("attention: heads and head_size must be positive and heads divide into groups "
                    "of key_value_heads, but {}, {} and {} came",
                    options.heads, options.head_size, options.key_value_heads));
  if (options.head_size > 0) return options.head_size;
  if (width % options.heads != 0)
    throw ValueError(fmt::format("attention: a width of {} does not divide into {} heads", width,
                                 options.heads));
  return width / options.heads;
}

// (B, T, heads · size) → (B, heads, T, size), a view
Tensor split_heads(const Tensor& x, std::int64_t heads) {
  return permute(reshape(x, {x.shape()[0], x.shape()[1], heads, -1}), {0, 2, 1, 3});
}

}  // namespace

MultiHeadAttention::MultiHeadAttention(Place place, std::int64_t width,
                                       const MultiHeadOptions& options)
    : Module(std::move(place)),
      query(at("query"), width, options.heads * nn::head_size(width, options), options.bias),
      key(at("key"), width,
          (options.key_value_heads ? options.key_value_heads : options.heads) *
              nn::head_size(width, options),
          options.bias),
      value(at("value"), width,
            (options.key_value_heads ? options.key_value_heads : options.heads) *
                nn::head_size(width, options),
            options.bias),
      out(at("out"), options.heads * nn::head_size(width, options), width, options.bias),
      options_(options),
      head_size_(nn::head_size(width, options)),
      key_value_heads_(options.key_value_heads ? options.key_value_heads : options.heads) {}

Tensor MultiHeadAttention::forward(const Tensor& x, const Tensor& mask) {
  const Tensor y = self_attention(
      split_heads(query(x), options_.heads), split_heads(key(x), key_value_heads_),
      split_heads(value(x), key_value_heads_),
      {.causal = options_.causal, .dropout = training() ? options_.dropout : 0.0, .mask = mask});
  return out(
      reshape(permute(y, {0, 2, 1, 3}), {x.shape()[0], x.shape()[1], options_.heads * head_size_}));
}

TransformerBlock::TransformerBlock(Place place, std::int64_t width,
                                   const TransformerBlockOptions& options)
    : Module(std::move(place)),
      norm1(at("norm1"), width),
      norm2(at("norm2"), width),
      attention(at("attention"), width, options.attention),
      up(at("up"), width, options.hidden ? options.hidden : 4 * width),
      down(at("down"), options.hidden ? options.hidden : 4 * width, width),
      dropout(at("dropout"), options.dropout),
      options_(options) {}

Tensor TransformerBlock::forward(const Tensor& x, const Tensor& mask) {
  const auto feed_forward = [&](const Tensor& t) {
    return dropout(down(dropout(activate(options_.activation, up(t)))));
  };
  if (options_.norm == NormOrder::pre) {
    const Tensor y = x + dropout(attention(norm1(x), mask));
    return y + feed_forward(norm2(y));
  }
  const Tensor y = norm1(x + dropout(attention(x, mask)));
  return norm2(y + feed_forward(y));
}

}  // namespace ebb::nn
