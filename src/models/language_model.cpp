#include "ebb/models/language_model.h"

#include "ebb/nn/decode_scope.h"
#include "models/check_config.h"

namespace ebb::models {
namespace {

nn::TransformerBlockOptions block_options(const LanguageModelConfig& c) {
  nn::TransformerBlockOptions options;
  options.attention = {
      .heads = c.heads, .head_size = c.head_size, .causal = true, .dropout = c.dropout};
  options.hidden = c.hidden;
  options.activation = nn::Activation::relu;
  options.dropout = c.dropout;
  return options;
}

const LanguageModelConfig& checked(const LanguageModelConfig& c) {
  check_sizes("the language model", {{"vocabulary", c.vocabulary},
                                     {"embedding", c.embedding},
                                     {"hidden", c.hidden},
                                     {"heads", c.heads},
                                     {"head_size", c.head_size},
                                     {"context", c.context}});
  block_count("the language model", c.layers);
  check_dropout("the language model", c.dropout);
  return c;
}

}  // namespace

LanguageModel::LanguageModel(const LanguageModelConfig& config)
    : config_(checked(config)),
      tokens_(at("tokens"), config.vocabulary, config.embedding),
      positions_(at("positions"), config.context, config.embedding),
      blocks_(at("blocks"), block_count("the language model", config.layers), config.embedding,
              block_options(config)),
      norm_(at("norm"), config.embedding),
      head_(at("head"), config.embedding, config.vocabulary, nn::Bias::no) {
  head_.keep_plain();
}

Tensor LanguageModel::forward(const Tensor& ids) {
  Tensor x = tokens_(ids) + nn::position_rows(positions_.weight, ids);
  for (nn::TransformerBlock& block : blocks_) x = block(x);
  return norm_(x);
}

Tensor LanguageModel::logits(const Tensor& ids) {
  return head_(nn::predicting_tokens((*this)(ids)));
}

Tensor LanguageModel::loss(const Tensor& ids, const Tensor& targets) {
  return linear_cross_entropy((*this)(ids), head_.weight, targets);
}

}  // namespace ebb::models
