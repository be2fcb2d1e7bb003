#include "ebb/models/bert.h"

#include "models/check_config.h"

namespace ebb::models {
namespace {

const nn::Initial initial = nn::Initial::normal(0.02);

nn::Linear dense(nn::Place place, std::int64_t in, std::int64_t out) {
  return {std::move(place), in, out, nn::Bias::yes, initial};
}

const BertConfig& checked(const BertConfig& c) {
  check_sizes("BERT", {{"vocabulary", c.vocabulary},
                       {"width", c.width},
                       {"hidden", c.hidden},
                       {"context", c.context},
                       {"types", c.types},
                       {"classes", c.classes}});
  check_heads("BERT", c.width, c.heads, c.heads);
  block_count("BERT", c.layers);
  check_dropout("BERT", c.dropout);
  check_positive("BERT", "eps", c.eps);
  return c;
}

}  // namespace

BertEmbeddings::BertEmbeddings(nn::Place place, const BertConfig& c)
    : Module(std::move(place)),
      word_embeddings_(at("word_embeddings"), c.vocabulary, c.width, initial),
      position_embeddings_(at("position_embeddings"), c.context, c.width, initial),
      token_type_embeddings_(at("token_type_embeddings"), c.types, c.width, initial),
      layer_norm_(at("LayerNorm"), c.width, c.eps),
      dropout_(at("dropout"), c.dropout) {}

Tensor BertEmbeddings::forward(const Tensor& ids) {
  const Tensor positions =
      slice(position_embeddings_.weight, 0, 0, ids.shape().back());   // (T, width)
  const Tensor type = slice(token_type_embeddings_.weight, 0, 0, 1);  // (1, width)
  return dropout_(layer_norm_(word_embeddings_(ids) + positions + type));
}

BertOutput::BertOutput(nn::Place place, std::int64_t in, const BertConfig& c)
    : Module(std::move(place)),
      dense_(dense(at("dense"), in, c.width)),
      layer_norm_(at("LayerNorm"), c.width, c.eps),
      dropout_(at("dropout"), c.dropout) {}

BertSelfAttention::BertSelfAttention(nn::Place place, const BertConfig& c)
    : Module(std::move(place)),
      heads_(c.heads),
      query_(dense(at("query"), c.width, c.width)),
      key_(dense(at("key"), c.width, c.width)),
      value_(dense(at("value"), c.width, c.width)),
      dropout_(at("dropout"), c.dropout) {
  check_heads("BERT", c.width, c.heads, c.heads);
}

Tensor BertSelfAttention::forward(const Tensor& x, const Tensor& mask) {
  const std::int64_t batch = x.shape()[0], length = x.shape()[1], width = x.shape()[2];
  const auto heads = [&](const Tensor& t) {
    return permute(reshape(t, {batch, length, heads_, width / heads_}), {0, 2, 1, 3});
  };
  const Tensor y = scaled_dot_product_attention(heads(query_(x)), heads(key_(x)), heads(value_(x)),
                                                {.dropout = dropout_.probability(), .mask = mask});
  return reshape(permute(y, {0, 2, 1, 3}), {batch, length, width});
}

BertAttention::BertAttention(nn::Place place, const BertConfig& c)
    : Module(std::move(place)), self_(at("self"), c), output_(at("output"), c.width, c) {}

BertIntermediate::BertIntermediate(nn::Place place, const BertConfig& c)
    : Module(std::move(place)), dense_(dense(at("dense"), c.width, c.hidden)) {}

BertLayer::BertLayer(nn::Place place, const BertConfig& c)
    : Module(std::move(place)),
      attention_(at("attention"), c),
      intermediate_(at("intermediate"), c),
      output_(at("output"), c.hidden, c) {}

Tensor BertLayer::forward(const Tensor& x, const Tensor& mask) {
  const Tensor y = attention_(x, mask);
  return output_(intermediate_(y), y);
}

BertEncoder::BertEncoder(nn::Place place, const BertConfig& c)
    : Module(std::move(place)), layer_(at("layer"), block_count("BERT", c.layers), c) {}

Tensor BertEncoder::forward(Tensor x, const Tensor& mask) {
  for (BertLayer& layer : layer_) x = layer(x, mask);
  return x;
}

BertPooler::BertPooler(nn::Place place, const BertConfig& c)
    : Module(std::move(place)), dense_(dense(at("dense"), c.width, c.width)) {}

Tensor BertPooler::forward(const Tensor& x) { return tanh(dense_(squeeze(slice(x, 1, 0, 1), 1))); }

BertModel::BertModel(nn::Place place, const BertConfig& c)
    : Module(std::move(place)),
      embeddings_(at("embeddings"), c),
      encoder_(at("encoder"), c),
      pooler_(at("pooler"), c) {}

Tensor BertModel::forward(const Tensor& ids, const Tensor& mask) {
  return pooler_(encoder_(embeddings_(ids), mask));
}

BertClassifier::BertClassifier(const BertConfig& config)
    : config_(checked(config)),
      bert_(at("bert"), config),
      dropout_(at("dropout"), config.dropout),
      classifier_(dense(at("classifier"), config.width, config.classes)) {}

Tensor BertClassifier::forward(const Tensor& ids, const Tensor& mask) {
  // (B, T) → (B, 1, 1, T): every query of every head sees the real tokens.
  const Tensor seen = mask ? reshape(mask, {mask.shape()[0], 1, 1, mask.shape()[1]}) : Tensor{};
  return classifier_(dropout_(bert_(ids, seen)));
}

}  // namespace ebb::models
