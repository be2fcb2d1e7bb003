#include "ebb/models/llama.h"

#include <fmt/core.h>

#include "ebb/error.h"
#include "ebb/nn/decode_scope.h"
#include "models/check_config.h"

namespace ebb::models {
namespace {

const nn::Initial initial_weights = nn::Initial::normal(0.02);

nn::Linear projection(nn::Place place, std::int64_t in, std::int64_t out, bool bias) {
  return {std::move(place), in, out, bias ? nn::Bias::yes : nn::Bias::no, initial_weights};
}

std::int64_t head_size(const LlamaConfig& c) {
  return c.head_size ? c.head_size : c.width / c.heads;
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
  check_positive("Llama", "rope.factor", c.rope.factor);
  check_dropout("Llama", c.hidden_dropout);
  if (c.rotary_size < 0 || c.rotary_size % 2 != 0 || c.rotary_size > head_size(c))
    throw ValueError(
        fmt::format("Llama: rotary_size must be even and at most the head size of {}, but is {}",
                    head_size(c), c.rotary_size));
  if (c.window < 0)
    throw ValueError(fmt::format("Llama: window must be at least 0, but is {}", c.window));
  if (!c.windowed.empty() && static_cast<std::int64_t>(c.windowed.size()) != c.layers)
    throw ValueError(fmt::format("Llama: windowed must name all {} layers, but names {}", c.layers,
                                 c.windowed.size()));
  return c;
}

std::int64_t query_width(const LlamaConfig& c) { return head_size(c) * c.heads; }
std::int64_t key_value_width(const LlamaConfig& c) { return head_size(c) * c.key_value_heads; }

}  // namespace

LlamaNorm::LlamaNorm(nn::Place place, const LlamaConfig& c)
    : Module(std::move(place)),
      weight(parameter("weight", {c.width}, nn::Initial::constant(1.0))),
      eps_(c.eps) {
  if (c.layer_norms) bias = parameter("bias", {c.width}, nn::Initial::constant(0.0));
}

LlamaAttention::LlamaAttention(nn::Place place, const LlamaConfig& c, std::int64_t layer)
    : Module(std::move(place)),
      heads_(c.heads),
      key_value_heads_(c.key_value_heads),
      head_size_(models::head_size(c)),
      rope_base_(c.rope_base),
      window_(c.has_window(layer, c.window + 1) ? c.window : 0),
      dropout_(at("attention_dropout"), c.attention_dropout),
      q_proj_(projection(at("q_proj"), c.width, query_width(c), c.attention_bias)),
      k_proj_(projection(at("k_proj"), c.width, key_value_width(c), c.attention_bias)),
      v_proj_(projection(at("v_proj"), c.width, key_value_width(c), c.attention_bias)),
      o_proj_(projection(at("o_proj"), query_width(c), c.width,
                         c.output_bias.value_or(c.attention_bias))) {
  if (!c.head_norms) return;
  q_norm_ = std::make_unique<nn::RMSNorm>(at("q_norm"), head_size_, c.eps);
  k_norm_ = std::make_unique<nn::RMSNorm>(at("k_norm"), head_size_, c.eps);
}

Tensor LlamaAttention::forward(const Tensor& x, const DecoderPlaces& places) {
  const std::int64_t batch = x.shape()[0], length = x.shape()[1];
  // → (B, heads, T, D), a view unless heads are normalised
  const auto split = [&](const Tensor& t, std::int64_t heads, nn::RMSNorm* norm) {
    const Tensor tokens = reshape(t, {batch, length, heads, head_size_});
    return permute(norm ? (*norm)(tokens) : tokens, {0, 2, 1, 3});
  };
  const auto turn = [&](const Tensor& t) {
    return places.turns ? turned(t, places.turns) : nn::rotate(t, rope_base_);
  };
  const Tensor q = turn(split(q_proj_(x), heads_, q_norm_.get())),
               k = turn(split(k_proj_(x), key_value_heads_, k_norm_.get()));
  const Tensor y = nn::self_attention(
      q, k, split(v_proj_(x), key_value_heads_, nullptr),
      {.causal = true,
       .dropout = dropout_.probability(),
       .mask = window_ > 0 && places.first_in_window ? places.first_in_window : places.first},
      window_);
  return o_proj_(reshape(permute(y, {0, 2, 1, 3}), {batch, length, heads_ * head_size_}));
}

LlamaMlp::LlamaMlp(nn::Place place, const LlamaConfig& c)
    : Module(std::move(place)),
      activation_(c.activation),
      gate_proj_(c.gated ? std::make_unique<nn::Linear>(at("gate_proj"), c.width, c.hidden,
                                                        c.mlp_bias ? nn::Bias::yes : nn::Bias::no,
                                                        initial_weights)
                         : nullptr),
      up_proj_(projection(at("up_proj"), c.width, c.hidden, c.mlp_bias)),
      down_proj_(projection(at("down_proj"), c.hidden, c.width, c.mlp_bias)) {}

LlamaLayer::LlamaLayer(nn::Place place, const LlamaConfig& c, std::int64_t layer)
    : Module(std::move(place)),
      parallel_(c.parallel),
      self_attn_(at("self_attn"), c, layer),
      mlp_(at("mlp"), c),
      input_layernorm_(at("input_layernorm"), c),
      post_attention_layernorm_(at("post_attention_layernorm"), c),
      dropout_(at("dropout"), c.hidden_dropout) {}

Tensor LlamaLayer::forward(const Tensor& x, const DecoderPlaces& places) {
  const Tensor attended = dropout_(self_attn_(input_layernorm_(x), places));
  if (parallel_) return dropout_(mlp_(post_attention_layernorm_(x))) + attended + x;
  const Tensor y = x + attended;
  return y + dropout_(mlp_(post_attention_layernorm_(y)));
}

LlamaDecoder::LlamaDecoder(nn::Place place, const LlamaConfig& c)
    : Module(std::move(place)),
      embed_tokens(at("embed_tokens"), c.vocabulary, c.width, initial_weights, c.padding),
      config_(c),
      dropout_(at("dropout"), c.hidden_dropout),
      layers_(at("layers")),
      norm_(at("norm"), c) {
  for (int layer = 0; layer < block_count("Llama", c.layers); ++layer) layers_.add(c, layer);
}

DecoderPlaces LlamaDecoder::places_of(const Tensor& x, const Packing& packing) const {
  const std::int64_t length = x.shape()[1];
  const Device device = x.device();
  DecoderPlaces places{.first = first_seen(x, packing)};
  if (config_.rope.scaling != RopeScaling::none || config_.rotary_size != 0 || packing) {
    const std::int64_t size = config_.rotary_size ? config_.rotary_size : head_size(config_);
    places.turns = make_turns(rope_speeds(config_.rope, config_.rope_base, size, device),
                              config_.rope.magnitude, length,
                              packing ? packing.positions : nn::decode_positions(), x.dtype());
  }
  if (!nn::DecodeScope::current() && config_.window > 0 && config_.window < length)
    places.first_in_window = first_seen(x, packing, config_.window);
  return places;
}

Tensor LlamaDecoder::forward(const Tensor& ids, const Packing& packing) {
  Tensor x = dropout_(embed_tokens(ids));
  const DecoderPlaces places = places_of(x, packing);
  for (LlamaLayer& layer : layers_) x = layer(x, places);
  return norm_(x);
}

Llama::Llama(const LlamaConfig& config) : config_(checked(config)), model_(at("model"), config) {
  if (config.tied) return;
  lm_head_ = std::make_unique<nn::Linear>(at("lm_head"), config.width, config.vocabulary,
                                          nn::Bias::no, initial_weights);
  lm_head_->keep_plain();
}

Tensor Llama::logits(const Tensor& ids) {
  return linear(nn::predicting_tokens((*this)(ids)), head());
}
Tensor Llama::loss(const Tensor& ids, const Tensor& targets) {
  return linear_cross_entropy((*this)(ids), head(), targets);
}
Tensor Llama::packed_loss(const Tensor& ids, const Tensor& targets, const Packing& packing) {
  return linear_cross_entropy((*this)(ids, packing), head(), targets);
}

}  // namespace ebb::models
