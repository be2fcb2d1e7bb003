#include "ebb/models/gpt2.h"

#include <cmath>

#include "ebb/nn/decode_scope.h"
#include "models/check_config.h"

namespace ebb::models {
namespace {

constexpr double stddev = 0.02;

// Projections at the end of a residual branch start smaller, so that the variance of the residual
// stream does not grow with the number of layers.
double residual_stddev(const Gpt2Config& config) {
  return stddev / std::sqrt(2.0 * static_cast<double>(config.layers));
}

std::int64_t hidden_width(const Gpt2Config& config) {
  return config.hidden ? config.hidden : 4 * config.width;
}

double score_scale(const Gpt2Config& config, std::int64_t layer) {
  double scale = 1.0;
  if (config.scale_attention) scale /= std::sqrt(static_cast<double>(config.size_of_head()));
  if (config.scale_by_inverse_layer) scale /= static_cast<double>(layer + 1);
  return scale;
}

// Without a size of their own, heads divide the width.
void check_own_heads(const Gpt2Config& c) {
  if (c.head_size == 0) return check_heads("GPT-2", c.width, c.heads, c.heads);
  check_sizes("GPT-2", {{"heads", c.heads}, {"head_size", c.head_size}});
}

const Gpt2Config& checked(const Gpt2Config& c) {
  check_sizes("GPT-2", {{"vocabulary", c.vocabulary}, {"context", c.context}, {"width", c.width}});
  if (c.hidden != 0) check_sizes("GPT-2", {{"hidden", c.hidden}});
  check_own_heads(c);
  block_count("GPT-2", c.layers);
  for (const double probability : {c.dropout.embedding, c.dropout.attention, c.dropout.residual})
    check_dropout("GPT-2", probability);
  check_positive("GPT-2", "eps", c.eps);
  return c;
}

}  // namespace

Conv1D::Conv1D(nn::Place place, std::int64_t in, std::int64_t out, double deviation)
    : Linear(std::move(place), in, out, nn::Bias::yes, nn::Initial::normal(deviation),
             WeightLayout::in_out) {}

Gpt2Attention::Gpt2Attention(nn::Place place, const Gpt2Config& config, std::int64_t layer)
    : Module(std::move(place)),
      heads_(config.heads),
      scale_(score_scale(config, layer)),
      dropout_(at("attn_dropout"), config.dropout.attention),
      c_attn_(at("c_attn"), config.width, 3 * config.heads * config.size_of_head(), stddev),
      c_proj_(at("c_proj"), config.heads * config.size_of_head(), config.width,
              residual_stddev(config)) {
  check_own_heads(config);
}

Tensor Gpt2Attention::forward(const Tensor& x, const Tensor& first) {
  const std::int64_t batch = x.shape()[0], length = x.shape()[1];
  const std::vector<Tensor> qkv = chunk(c_attn_(x), 2, 3);
  const std::int64_t width = qkv[0].shape()[2];  // of all heads
  const auto heads = [&](const Tensor& t) {      // (B, T, width) → (B, H, T, D), a view
    return permute(reshape(t, {batch, length, heads_, width / heads_}), {0, 2, 1, 3});
  };
  const Tensor y = nn::self_attention(
      heads(qkv[0]), heads(qkv[1]), heads(qkv[2]),
      {.causal = true, .scale = scale_, .dropout = dropout_.probability(), .mask = first});
  return c_proj_(reshape(permute(y, {0, 2, 1, 3}), {batch, length, width}));
}

Gpt2Mlp::Gpt2Mlp(nn::Place place, const Gpt2Config& config)
    : Module(std::move(place)),
      activation_(config.activation),
      c_fc_(at("c_fc"), config.width, hidden_width(config), stddev),
      c_proj_(at("c_proj"), hidden_width(config), config.width, residual_stddev(config)) {}

Gpt2Block::Gpt2Block(nn::Place place, const Gpt2Config& config, std::int64_t layer)
    : Module(std::move(place)),
      ln_1_(at("ln_1"), config.width, config.eps),
      attn_(at("attn"), config, layer),
      ln_2_(at("ln_2"), config.width, config.eps),
      mlp_(at("mlp"), config),
      dropout_(at("resid_dropout"), config.dropout.residual) {}

Tensor Gpt2Block::forward(const Tensor& x, const Tensor& first) {
  const Tensor y = x + dropout_(attn_(ln_1_(x), first));
  return y + dropout_(mlp_(ln_2_(y)));
}

Gpt2Transformer::Gpt2Transformer(nn::Place place, const Gpt2Config& config)
    : Module(std::move(place)),
      wte(at("wte"), config.vocabulary, config.width, nn::Initial::normal(stddev)),
      wpe(at("wpe"), config.context, config.width, nn::Initial::normal(stddev)),
      dropout_(at("drop"), config.dropout.embedding),
      h_(at("h")),
      ln_f_(at("ln_f"), config.width, config.eps) {
  for (int layer = 0; layer < block_count("GPT-2", config.layers); ++layer) h_.add(config, layer);
}

Tensor Gpt2Transformer::forward(const Tensor& ids, const Packing& packing) {
  const Tensor places = packing ? wpe(packing.positions) : nn::position_rows(wpe.weight, ids);
  Tensor x = dropout_(wte(ids) + places);
  const Tensor first = first_seen(x, packing);
  for (Gpt2Block& block : h_) x = block(x, first);
  return ln_f_(x);
}

Gpt2::Gpt2(const Gpt2Config& config)
    : config_(checked(config)), transformer_(at("transformer"), config) {
  if (config.tied) return;
  lm_head_ = std::make_unique<nn::Linear>(at("lm_head"), config.width, config.vocabulary,
                                          nn::Bias::no, nn::Initial::normal(stddev));
  lm_head_->keep_plain();
}

Tensor Gpt2::logits(const Tensor& ids) {
  return linear(nn::predicting_tokens((*this)(ids)), head());
}

Tensor Gpt2::loss(const Tensor& ids, const Tensor& targets) {
  return linear_cross_entropy((*this)(ids), head(), targets);
}

Tensor Gpt2::packed_loss(const Tensor& ids, const Tensor& targets, const Packing& packing) {
  return linear_cross_entropy((*this)(ids, packing), head(), targets);
}

}  // namespace ebb::models
