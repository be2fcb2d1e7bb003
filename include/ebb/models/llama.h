// A Llama-style decoder: RMS norms, gated feed-forward, rotary positions, grouped queries. Names
// are those of the published weights.
#pragma once

#include <memory>
#include <optional>

#include "ebb/models/causal_lm.h"
#include "ebb/models/origin.h"
#include "ebb/nn/layers.h"

namespace ebb::models {

struct LlamaConfig {
  std::int64_t vocabulary = 32000, width = 2048, hidden = 5632, layers = 22, heads = 32,
               key_value_heads = 4, context = 2048;
  double eps = 1e-5, rope_base = 10000.0;
  bool tied = false;               // whether the output uses the token embedding
  std::int64_t head_size = 0;      // 0: width / heads
  double attention_dropout = 0.0;  // probability for attention weights
  nn::Activation activation = nn::Activation::silu;
  bool attention_bias = false, mlp_bias = false;  // of the linear layers of each part
  std::optional<std::int64_t> padding = {};       // a token whose embedding is not trained
};

class LlamaAttention : public nn::Module<LlamaAttention> {
 public:
  LlamaAttention(nn::Place place, const LlamaConfig& config);
  Tensor forward(const Tensor& x);  // (B, T, width)

 private:
  std::int64_t heads_, key_value_heads_, head_size_;
  double rope_base_;
  nn::Dropout dropout_;
  nn::Linear q_proj_, k_proj_, v_proj_, o_proj_;
};

class LlamaMlp : public nn::Module<LlamaMlp> {
 public:
  LlamaMlp(nn::Place place, const LlamaConfig& config);
  Tensor forward(const Tensor& x) {
    return down_proj_(activate(activation_, gate_proj_(x)) * up_proj_(x));
  }

 private:
  nn::Activation activation_;
  nn::Linear gate_proj_, up_proj_, down_proj_;
};

class LlamaLayer : public nn::Module<LlamaLayer> {
 public:
  LlamaLayer(nn::Place place, const LlamaConfig& config);
  Tensor forward(const Tensor& x);

 private:
  LlamaAttention self_attn_;
  LlamaMlp mlp_;
  nn::RMSNorm input_layernorm_, post_attention_layernorm_;
};

class LlamaDecoder : public nn::Module<LlamaDecoder> {
 public:
  LlamaDecoder(nn::Place place, const LlamaConfig& config);
  Tensor forward(const Tensor& ids);  // (B, T) → (B, T, width)

  nn::Embedding embed_tokens;

 private:
  nn::List<LlamaLayer> layers_;
  nn::RMSNorm norm_;
};

class Llama : public nn::Module<Llama>, public CausalLm, public HasOrigin {
 public:
  explicit Llama(const LlamaConfig& config);
  Tensor forward(const Tensor& ids) { return model_(ids); }
  Tensor logits(const Tensor& ids) override;
  Tensor loss(const Tensor& ids, const Tensor& targets) override;
  std::int64_t vocabulary() const override { return config_.vocabulary; }
  std::int64_t context() const override { return config_.context; }
  const LlamaConfig& config() const { return config_; }

 private:
  const Variable& head() const { return lm_head_ ? lm_head_->weight : model_.embed_tokens.weight; }

  LlamaConfig config_;
  LlamaDecoder model_;
  std::unique_ptr<nn::Linear> lm_head_;  // null when tied
};

}  // namespace ebb::models
