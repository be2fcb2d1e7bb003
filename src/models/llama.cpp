#include "ebb/models/llama.h"

#include "models/check_config.h"

namespace ebb::models {
namespace {

const nn::Initial initial = nn::Initial::normal(0.02);

nn::Linear projection(nn::Place place, std::int64_t in, std::int64_t out, bool bias) {
  return {std::move(place), in, out, bias ? nn::Bias::yes : nn::Bias::no, initial};
}

const LlamaConfig& checked(const LlamaConfig& c) {
  check_sizes("Llama", {{"vocabulary", c.vocabulary},
                        {"width", c.width},
                        {"hidden", c.hidden},
                        {"context", c.context}});
  check_sizes("Llama", {{"heads", c.heads}, {"key_value_heads", c.key_value_heads}});
  if (c.head_size != 0) check_sizes("Llama", {{"head_size", c.head_size}});
  // Heads with a size of their own need not divide the width.
  check_heads("Llama", c.head_size ? c.head_size * c.heads : c.width, c.heads, c.key_value_heads);
  block_count("Llama", c.layers);
  check_dropout("Llama", c.attention_dropout);
  check_positive("Llama", "eps", c.eps);
  check_positive("Llama", "rope_base", c.rope_base);
  return c;
}

std::int64_t head_size(const LlamaConfig& c) {
  return c.head_size ? c.head_size : c.width / c.heads;
}
std::int64_t query_width(const LlamaConfig& c) { return head_size(c) * c.heads; }
std::int64_t key_value_width(const LlamaConfig& c) { return head_size(c) * c.key_value_heads; }

}  // namespace

LlamaAttention::LlamaAttention(nn::Place place, const LlamaConfig& c)
    : Module(std::move(place)),
      heads_(c.heads),
      key_value_heads_(c.key_value_heads),
      head_size_(models::head_size(c)),
      rope_base_(c.rope_base),
      dropout_(at("attention_dropout"), c.attention_dropout),
      q_proj_(projection(at("q_proj"), c.width, query_width(c), c.attention_bias)),
      k_proj_(projection(at("k_proj"), c.width, key_value_width(c), c.attention_bias)),
      v_proj_(projection(at("v_proj"), c.width, key_value_width(c), c.attention_bias)),
      o_proj_(projection(at("o_proj"), query_width(c), c.width, c.attention_bias)) {}

Tensor LlamaAttention::forward(const Tensor& x) {
  const std::int64_t batch = x.shape()[0], length = x.shape()[1];
  const auto split = [&](const Tensor& t, std::int64_t heads) {  // → (B, heads, T, D), a view
    return permute(reshape(t, {batch, length, heads, head_size_}), {0, 2, 1, 3});
  };
  const Tensor q = rotary(split(q_proj_(x), heads_), rope_base_),
               k = rotary(split(k_proj_(x), key_value_heads_), rope_base_);
  const Tensor y =
      scaled_dot_product_attention(q, k, split(v_proj_(x), key_value_heads_),
                                   {.causal = true, .dropout = dropout_.probability()});
  return o_proj_(reshape(permute(y, {0, 2, 1, 3}), {batch, length, heads_ * head_size_}));
}

LlamaMlp::LlamaMlp(nn::Place place, const LlamaConfig& c)
    : Module(std::move(place)),
      activation_(c.activation),
      gate_proj_(projection(at("gate_proj"), c.width, c.hidden, c.mlp_bias)),
      up_proj_(projection(at("up_proj"), c.width, c.hidden, c.mlp_bias)),
      down_proj_(projection(at("down_proj"), c.hidden, c.width, c.mlp_bias)) {}

LlamaLayer::LlamaLayer(nn::Place place, const LlamaConfig& c)
    : Module(std::move(place)),
      self_attn_(at("self_attn"), c),
      mlp_(at("mlp"), c),
      input_layernorm_(at("input_layernorm"), c.width, c.eps),
      post_attention_layernorm_(at("post_attention_layernorm"), c.width, c.eps) {}

Tensor LlamaLayer::forward(const Tensor& x) {
  const Tensor y = x + self_attn_(input_layernorm_(x));
  return y + mlp_(post_attention_layernorm_(y));
}

LlamaDecoder::LlamaDecoder(nn::Place place, const LlamaConfig& c)
    : Module(std::move(place)),
      embed_tokens(at("embed_tokens"), c.vocabulary, c.width, initial, c.padding),
      layers_(at("layers"), block_count("Llama", c.layers), c),
      norm_(at("norm"), c.width, c.eps) {}

Tensor LlamaDecoder::forward(const Tensor& ids) {
  Tensor x = embed_tokens(ids);
  for (LlamaLayer& layer : layers_) x = layer(x);
  return norm_(x);
}

Llama::Llama(const LlamaConfig& config) : config_(checked(config)), model_(at("model"), config) {
  if (!config.tied)
    lm_head_ = std::make_unique<nn::Linear>(at("lm_head"), config.width, config.vocabulary,
                                            nn::Bias::no, initial);
}

Tensor Llama::logits(const Tensor& ids) { return linear((*this)(ids), head()); }
Tensor Llama::loss(const Tensor& ids, const Tensor& targets) {
  return linear_cross_entropy((*this)(ids), head(), targets);
}

}  // namespace ebb::models
