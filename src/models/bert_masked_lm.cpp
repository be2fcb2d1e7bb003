#include "ebb/models/bert_masked_lm.h"

#include "ebb/ops.h"
#include "models/bert_parts.h"

namespace ebb::models {
namespace {

// RoBERTa's head uses GELU, whichever activation the encoder has.
nn::Activation head_activation(const BertConfig& c) {
  return c.family == EncoderFamily::roberta ? nn::Activation::gelu : c.activation;
}

}  // namespace

BertPredictionTransform::BertPredictionTransform(nn::Place place, const BertConfig& c)
    : Module(std::move(place)),
      activation_(head_activation(c)),
      dense_(at("dense"), c.width, c.width, nn::Bias::yes, initial(c)),
      layer_norm_(at("LayerNorm"), c.width, c.eps) {}

Tensor BertPredictionTransform::forward(const Tensor& x) {
  return layer_norm_(activate(activation_, dense_(x)));
}

BertPredictions::BertPredictions(nn::Place place, const BertConfig& c)
    : Module(std::move(place)),
      transform_(at("transform"), c),
      decoder_(c.tied ? nullptr
                      : std::make_unique<nn::Linear>(at("decoder"), c.width, c.vocabulary,
                                                     nn::Bias::no, initial(c))),
      bias_(parameter("bias", {c.vocabulary}, nn::Initial::constant(0.0))) {
  if (decoder_) decoder_->keep_plain();  // as the table of embeddings
}

Tensor BertPredictions::forward(const Tensor& x, const Tensor& words) {
  return linear(transform_(x), decoder_ ? Tensor(decoder_->weight) : words, bias_);
}

BertMaskedLm::BertMaskedLm(const BertConfig& config)
    : config_(checked(config)), bert_(at("bert"), config, Pooling::no), cls_(at("cls"), config) {}

Tensor BertMaskedLm::forward(const Tensor& ids, const Tensor& mask) {
  return cls_(bert_.hidden(ids, mask), bert_.words());
}

Tensor BertMaskedLm::loss(const Tensor& ids, const Tensor& targets, const Tensor& mask) {
  return cross_entropy((*this)(ids, mask), targets);
}

}  // namespace ebb::models
