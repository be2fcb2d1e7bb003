// The small Transformer language model of the needle study: token and position embeddings, pre-norm
// blocks with heads of their own size, and a linear output.
#pragma once

#include "ebb/models/causal_lm.h"
#include "ebb/nn/layers.h"

namespace ebb::models {

struct LanguageModelConfig {
  std::int64_t vocabulary = 1000, embedding = 20, hidden = 32, layers = 1, heads = 8,
               head_size = 32, context = 20;
  double dropout = 0.1;
};

class LanguageModel : public nn::Module<LanguageModel>, public CausalLm {
 public:
  explicit LanguageModel(const LanguageModelConfig& config);
  Tensor forward(const Tensor& ids);  // (B, T) → hidden states (B, T, embedding)
  Tensor logits(const Tensor& ids) override;
  Tensor loss(const Tensor& ids, const Tensor& targets) override;
  std::int64_t vocabulary() const override { return config_.vocabulary; }
  std::int64_t context() const override { return config_.context; }
  const LanguageModelConfig& config() const { return config_; }

 private:
  LanguageModelConfig config_;
  nn::Embedding tokens_, positions_;
  nn::List<nn::TransformerBlock> blocks_;
  nn::LayerNorm norm_;
  nn::Linear head_;
};

}  // namespace ebb::models
