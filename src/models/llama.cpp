#include "ebb/models/llama.h"

#include "models/check_config.h"

namespace ebb::models {
namespace {

const nn::Initial initial = nn::Initial::normal(0.02);

nn::Linear projection(nn::Place place, std::int64_t in, std::int64_t out) {
  return {std::move(place), in, out, nn::Bias::no, initial};
}

std::int64_t key_value_width(const LlamaConfig& c) {
  check_heads("Llama", c.width, c.heads, c.key_value_heads);
  return c.width / c.heads * c.key_value_heads;
}

const LlamaConfig& checked(const LlamaConfig& c) {
  check_sizes("Llama", {{"vocabulary", c.vocabulary},
                        {"width", c.width},
                        {"hidden", c.hidden},
                        {"context", c.context}});
  check_heads("Llama", c.width, c.heads, c.key_value_heads);
  block_count("Llama", c.layers);
  check_positive("Llama", "eps", c.eps);
  check_positive("Llama", "rope_base", c.rope_base);
  return c;
}

}  // namespace

LlamaAttention::LlamaAttention(nn::Place place, const LlamaConfig& c)
    : Module(std::move(place)),
      heads_(c.heads),
      key_value_heads_(c.key_value_heads),
      rope_base_(c.rope_base),
      q_proj_(projection(at("q_proj"), c.width, c.width)),
      k_proj_(projection(at("k_proj"), c.width, key_value_width(c))),
      v_proj_(projection(at("v_proj"), c.width, key_value_width(c))),
      o_proj_(projection(at("o_proj"), c.width, c.width)) {}

Tensor LlamaAttention::forward(const Tensor& x) {
  const std::int64_t batch = x.shape()[0], length = x.shape()[1], width = x.shape()[2];
  const auto split = [&](const Tensor& t, std::int64_t heads) {  // → (B, heads, T, D), a view
    return permute(reshape(t, {batch, length, heads, width / heads_}), {0, 2, 1, 3});
  };
  const Tensor q = rotary(split(q_proj_(x), heads_), rope_base_),
               k = rotary(split(k_proj_(x), key_value_heads_), rope_base_);
  const Tensor y =
      scaled_dot_product_attention(q, k, split(v_proj_(x), key_value_heads_), {.causal = true});
  return o_proj_(reshape(permute(y, {0, 2, 1, 3}), {batch, length, width}));
}

LlamaMlp::LlamaMlp(nn::Place place, const LlamaConfig& c)
    : Module(std::move(place)),
      gate_proj_(projection(at("gate_proj"), c.width, c.hidden)),
      up_proj_(projection(at("up_proj"), c.width, c.hidden)),
      down_proj_(projection(at("down_proj"), c.hidden, c.width)) {}

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
      embed_tokens(at("embed_tokens"), c.vocabulary, c.width, initial),
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
