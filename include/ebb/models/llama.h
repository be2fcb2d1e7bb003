// A decoder as Llama has it: RMS norms, gated feed-forward, rotary positions, grouped queries.
// Names are those of the published weights. Its relatives (Mistral, Qwen2, Qwen3, GPT-NeoX) are the
// same decoder with other fields of the config.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "ebb/models/causal_lm.h"
#include "ebb/models/origin.h"
#include "ebb/models/rope.h"
#include "ebb/nn/layers.h"

namespace ebb::models {

enum class DecoderFamily : std::uint8_t { llama, mistral, qwen2, qwen3, gpt_neox };

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

  // Fields in which relatives differ from Llama.
  DecoderFamily family = DecoderFamily::llama;  // affects only tensor names in files
  Rope rope = {};
  std::int64_t rotary_size = 0;  // rotated features of a head, counted from the first; 0: all
  std::optional<bool> output_bias = {};  // of attention's last layer; nothing: as attention_bias
  bool head_norms = false;               // queries and keys are normalised head by head (RMS)
  std::int64_t window = 0;          // tokens that a token sees, itself included; 0: all before it
  std::vector<bool> windowed = {};  // the layers that have a window, by number; empty: all
  bool layer_norms = false;         // LayerNorm with a bias instead of RMSNorm
  bool parallel = false;            // attention and feed-forward both read the layer's input
  bool gated = true;                // the feed-forward part has a gate
  double hidden_dropout = 0.0;      // of embeddings and of each branch before it is added

  // Whether the model is Llama itself: none of the fields above is used.
  bool plain() const {
    return rope.scaling == RopeScaling::none && rotary_size == 0 && !output_bias && !head_norms &&
           window == 0 && !layer_norms && !parallel && gated && hidden_dropout == 0.0;
  }
  // Whether a layer, by its number, has a window that matters to `length` tokens.
  bool has_window(std::int64_t layer, std::int64_t length) const {
    return window > 0 && window < length &&
           (windowed.empty() || windowed.at(static_cast<std::size_t>(layer)));
  }
};

// What the layers of a decoder share: the rotation angles of the tokens, unless the op `rotary`
// computes them, and restrictions of attention beyond causality.
struct DecoderPlaces {
  Turns turns = {};
  Tensor first = {}, first_in_window = {};  // the first token each sees, or empty: all before it
};

// RMSNorm, or LayerNorm with a bias.
class LlamaNorm : public nn::Module<LlamaNorm> {
 public:
  LlamaNorm(nn::Place place, const LlamaConfig& config);
  Tensor forward(const Tensor& x) {
    return bias ? layer_norm(x, weight, bias, eps_) : rms_norm(x, weight, eps_);
  }

  Variable weight, bias;  // (width); the bias is empty for RMS

 private:
  double eps_;
};

class LlamaAttention : public nn::Module<LlamaAttention> {
 public:
  LlamaAttention(nn::Place place, const LlamaConfig& config, std::int64_t layer = 0);
  Tensor forward(const Tensor& x, const DecoderPlaces& places = {});  // (B, T, width)

 private:
  std::int64_t heads_, key_value_heads_, head_size_;
  double rope_base_;
  std::int64_t window_;  // tokens that a token sees; 0: all before it
  nn::Dropout dropout_;
  nn::Linear q_proj_, k_proj_, v_proj_, o_proj_;
  std::unique_ptr<nn::RMSNorm> q_norm_, k_norm_;  // null without norms of heads
};

class LlamaMlp : public nn::Module<LlamaMlp> {
 public:
  LlamaMlp(nn::Place place, const LlamaConfig& config);
  Tensor forward(const Tensor& x) {
    if (!gate_proj_) return down_proj_(activate(activation_, up_proj_(x)));
    return down_proj_(activate(activation_, (*gate_proj_)(x)) * up_proj_(x));
  }

 private:
  nn::Activation activation_;
  std::unique_ptr<nn::Linear> gate_proj_;  // null without a gate
  nn::Linear up_proj_, down_proj_;
};

class LlamaLayer : public nn::Module<LlamaLayer> {
 public:
  LlamaLayer(nn::Place place, const LlamaConfig& config, std::int64_t layer = 0);
  Tensor forward(const Tensor& x, const DecoderPlaces& places = {});

 private:
  bool parallel_;
  LlamaAttention self_attn_;
  LlamaMlp mlp_;
  LlamaNorm input_layernorm_, post_attention_layernorm_;
  nn::Dropout dropout_;
};

class LlamaDecoder : public nn::Module<LlamaDecoder> {
 public:
  LlamaDecoder(nn::Place place, const LlamaConfig& config);
  Tensor forward(const Tensor& ids, const Packing& packing = {});  // (B, T) → (B, T, width)

  nn::Embedding embed_tokens;

 private:
  DecoderPlaces places_of(const Tensor& x, const Packing& packing) const;

  LlamaConfig config_;
  nn::Dropout dropout_;
  nn::List<LlamaLayer> layers_;
  LlamaNorm norm_;
};

class Llama : public nn::Module<Llama>, public CausalLm, public HasOrigin {
 public:
  explicit Llama(const LlamaConfig& config);
  Tensor forward(const Tensor& ids, const Packing& packing = {}) { return model_(ids, packing); }
  Tensor logits(const Tensor& ids) override;
  Tensor loss(const Tensor& ids, const Tensor& targets) override;
  Tensor packed_loss(const Tensor& ids, const Tensor& targets, const Packing& packing) override;
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
