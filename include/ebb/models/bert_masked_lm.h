// BERT, RoBERTa and DistilBERT with the head that predicts masked words, under the parameter names
// of BERT's published weights.
#pragma once

#include "ebb/models/bert.h"
#include "ebb/models/masked_lm.h"

namespace ebb::models {

// A linear layer, an activation and a norm before the scores of words.
class BertPredictionTransform : public nn::Module<BertPredictionTransform> {
 public:
  BertPredictionTransform(nn::Place place, const BertConfig& config);
  Tensor forward(const Tensor& x);  // (B, T, width) → (B, T, width)

 private:
  nn::Activation activation_;
  nn::Linear dense_;
  nn::LayerNorm layer_norm_;
};

class BertPredictions : public nn::Module<BertPredictions> {
 public:
  BertPredictions(nn::Place place, const BertConfig& config);
  // (B, T, width) → (B, T, vocabulary). `words` (vocabulary, width) is the table of embeddings,
  // which is the matrix of the scores too unless the head has its own.
  Tensor forward(const Tensor& x, const Tensor& words);

 private:
  BertPredictionTransform transform_;
  std::unique_ptr<nn::Linear> decoder_;  // null if tied
  Variable bias_;
};

class BertHead : public nn::Module<BertHead> {
 public:
  BertHead(nn::Place place, const BertConfig& config)
      : Module(std::move(place)), predictions_(at("predictions"), config) {}
  Tensor forward(const Tensor& x, const Tensor& words) { return predictions_(x, words); }

 private:
  BertPredictions predictions_;
};

class BertMaskedLm : public nn::Module<BertMaskedLm>, public MaskedLm, public HasOrigin {
 public:
  explicit BertMaskedLm(const BertConfig& config);
  Tensor forward(const Tensor& ids, const Tensor& mask = {});
  Tensor logits(const Tensor& ids, const Tensor& mask) override { return (*this)(ids, mask); }
  Tensor loss(const Tensor& ids, const Tensor& targets, const Tensor& mask = {}) override;
  std::int64_t vocabulary() const override { return config_.vocabulary; }
  std::int64_t context() const override { return config_.longest(); }
  const BertConfig& config() const { return config_; }

 private:
  BertConfig config_;
  BertModel bert_;
  BertHead cls_;
};

}  // namespace ebb::models
