// GPT-2, with the parameter names and layouts of its published weights.
#pragma once

#include <memory>
#include <optional>

#include "ebb/models/causal_lm.h"
#include "ebb/models/origin.h"
#include "ebb/nn/layers.h"

namespace ebb::models {

// Probabilities of dropout; a single number sets all of them.
struct Gpt2Dropout {
  double embedding = 0.0;  // of the sum of token and position embeddings
  double attention = 0.0;  // of attention weights
  double residual = 0.0;   // of each branch before it is added

  constexpr Gpt2Dropout(double all = 0.0) : embedding(all), attention(all), residual(all) {}
};

struct Gpt2Config {
  std::int64_t vocabulary = 50257, context = 1024, layers = 12, heads = 12, width = 768;
  Gpt2Dropout dropout = 0.0;
  double eps = 1e-5;
  std::int64_t hidden = 0;  // of the feed-forward part; 0: 4 × width
  nn::Activation activation = nn::Activation::gelu_tanh;
  bool tied = true;                     // whether the output uses the token embedding
  bool scale_attention = true;          // scores are divided by √head_size
  bool scale_by_inverse_layer = false;  // scores of layer i, from 0, are also divided by i + 1
  std::int64_t head_size = 0;  // 0: width / heads; otherwise as it was before pruning heads

  std::int64_t size_of_head() const { return head_size ? head_size : width / heads; }
};

// A linear layer whose weight is (in, out), as GPT-2 stores it.
class Conv1D : public nn::Linear {
 public:
  Conv1D(nn::Place place, std::int64_t in, std::int64_t out, double stddev);
};

class Gpt2Attention : public nn::Module<Gpt2Attention> {
 public:
  Gpt2Attention(nn::Place place, const Gpt2Config& config, std::int64_t layer);
  Tensor forward(const Tensor& x, const Tensor& first = {});  // (B, T, width)

 private:
  std::int64_t heads_;
  double scale_;  // of the scores
  nn::Dropout dropout_;
  Conv1D c_attn_, c_proj_;
};

class Gpt2Mlp : public nn::Module<Gpt2Mlp> {
 public:
  Gpt2Mlp(nn::Place place, const Gpt2Config& config);
  Tensor forward(const Tensor& x) { return c_proj_(activate(activation_, c_fc_(x))); }

 private:
  nn::Activation activation_;
  Conv1D c_fc_, c_proj_;
};

class Gpt2Block : public nn::Module<Gpt2Block> {
 public:
  Gpt2Block(nn::Place place, const Gpt2Config& config, std::int64_t layer);
  Tensor forward(const Tensor& x, const Tensor& first = {});

 private:
  nn::LayerNorm ln_1_;
  Gpt2Attention attn_;
  nn::LayerNorm ln_2_;
  Gpt2Mlp mlp_;
  nn::Dropout dropout_;
};

// The part called "transformer" in the published names.
class Gpt2Transformer : public nn::Module<Gpt2Transformer> {
 public:
  Gpt2Transformer(nn::Place place, const Gpt2Config& config);
  Tensor forward(const Tensor& ids, const Packing& packing = {});  // (B, T) → (B, T, width)

  nn::Embedding wte, wpe;

 private:
  nn::Dropout dropout_;
  nn::List<Gpt2Block> h_;
  nn::LayerNorm ln_f_;
};

class Gpt2 : public nn::Module<Gpt2>, public CausalLm, public HasOrigin {
 public:
  explicit Gpt2(const Gpt2Config& config);
  Tensor forward(const Tensor& ids, const Packing& packing = {}) {
    return transformer_(ids, packing);
  }
  Tensor logits(const Tensor& ids) override;
  Tensor loss(const Tensor& ids, const Tensor& targets) override;
  Tensor packed_loss(const Tensor& ids, const Tensor& targets, const Packing& packing) override;
  std::int64_t vocabulary() const override { return config_.vocabulary; }
  std::int64_t context() const override { return config_.context; }
  const Gpt2Config& config() const { return config_; }

 private:
  const Variable& head() const { return lm_head_ ? lm_head_->weight : transformer_.wte.weight; }

  Gpt2Config config_;
  Gpt2Transformer transformer_;
  std::unique_ptr<nn::Linear> lm_head_;  // null when tied
};

}  // namespace ebb::models
