#include "ebb/models/bert.h"

#include <fmt/core.h>

#include "ebb/error.h"
#include "models/bert_parts.h"
#include "models/check_config.h"

namespace ebb::models {
namespace {

nn::Linear dense(nn::Place place, std::int64_t in, std::int64_t out, const BertConfig& c) {
  return {std::move(place), in, out, nn::Bias::yes, initial(c)};
}

}  // namespace

const BertConfig& checked(const BertConfig& c) {
  check_sizes("BERT", {{"vocabulary", c.vocabulary},
                       {"width", c.width},
                       {"hidden", c.hidden},
                       {"context", c.context},
                       {"classes", c.classes}});
  if (c.family != EncoderFamily::distilbert) check_sizes("BERT", {{"types", c.types}});
  if (c.family == EncoderFamily::roberta && (!c.padding || c.longest() < 1))
    throw ValueError(
        fmt::format("BERT: RoBERTa counts positions from its padding token on: it must have one, "
                    "and a context above it, but the context is {}",
                    c.context));
  check_heads("BERT", c.width, c.heads, c.heads);
  block_count("BERT", c.layers);
  for (const double probability :
       {c.dropout.hidden, c.dropout.attention, c.dropout.classifier.value_or(c.dropout.hidden)})
    check_dropout("BERT", probability);
  check_not_negative("BERT", "initial_deviation", c.initial_deviation);
  check_positive("BERT", "eps", c.eps);
  return c;
}

namespace {

// Dropout of the layers around the classifier.
double head_dropout(const BertConfig& c) { return c.dropout.classifier.value_or(c.dropout.hidden); }

std::optional<std::int64_t> position_padding(const BertConfig& c) {
  return c.family == EncoderFamily::roberta ? c.padding : std::nullopt;
}

}  // namespace

BertEmbeddings::BertEmbeddings(nn::Place place, const BertConfig& c)
    : Module(std::move(place)),
      padding_(position_padding(c)),
      word_embeddings_(at("word_embeddings"), c.vocabulary, c.width, initial(c), c.padding),
      position_embeddings_(at("position_embeddings"), c.context, c.width, initial(c), padding_),
      token_type_embeddings_(c.family == EncoderFamily::distilbert
                                 ? nullptr
                                 : std::make_unique<nn::Embedding>(at("token_type_embeddings"),
                                                                   c.types, c.width, initial(c))),
      layer_norm_(at("LayerNorm"), c.width, c.eps),
      dropout_(at("dropout"), c.dropout.hidden) {}

// For each token, the number of tokens up to it that are not padding; padding takes no position.
Tensor BertEmbeddings::positions_of(const Tensor& ids) const {
  const std::int64_t length = ids.shape().back();
  const Tensor none = full({}, static_cast<double>(*padding_), i64, ids.device());
  const Tensor real = cast(not_equal(cast(ids, i64), none), i64);  // (B, T)
  const Tensor token = arange(length, i64, ids.device());
  const Tensor before = less_equal(token, unsqueeze(token, -1));  // (T, T)
  const Tensor count = sum(where(before, unsqueeze(real, 1), zeros({}, i64, ids.device())), {-1});
  return count * real + none;
}

Tensor BertEmbeddings::forward(const Tensor& ids) {
  const Tensor positions =
      padding_ ? position_embeddings_(positions_of(ids))
               : slice(position_embeddings_.weight, 0, 0, ids.shape().back());  // (T, width)
  Tensor x = word_embeddings_(ids) + positions;
  if (token_type_embeddings_) x = x + slice(token_type_embeddings_->weight, 0, 0, 1);
  return dropout_(layer_norm_(x));
}

BertOutput::BertOutput(nn::Place place, std::int64_t in, const BertConfig& c, double dropout)
    : Module(std::move(place)),
      dense_(dense(at("dense"), in, c.width, c)),
      layer_norm_(at("LayerNorm"), c.width, c.eps),
      dropout_(at("dropout"), dropout) {}

BertSelfAttention::BertSelfAttention(nn::Place place, const BertConfig& c)
    : Module(std::move(place)),
      heads_(c.heads),
      query_(dense(at("query"), c.width, c.width, c)),
      key_(dense(at("key"), c.width, c.width, c)),
      value_(dense(at("value"), c.width, c.width, c)),
      dropout_(at("dropout"), c.dropout.attention) {
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
    : Module(std::move(place)),
      self_(at("self"), c),
      output_(at("output"), c.width, c,
              c.family == EncoderFamily::distilbert ? 0.0 : c.dropout.hidden) {}

BertIntermediate::BertIntermediate(nn::Place place, const BertConfig& c)
    : Module(std::move(place)),
      activation_(c.activation),
      dense_(dense(at("dense"), c.width, c.hidden, c)) {}

BertLayer::BertLayer(nn::Place place, const BertConfig& c)
    : Module(std::move(place)),
      attention_(at("attention"), c),
      intermediate_(at("intermediate"), c),
      output_(at("output"), c.hidden, c, c.dropout.hidden) {}

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
    : Module(std::move(place)),
      activation_(c.family == EncoderFamily::distilbert ? nn::Activation::relu
                                                        : nn::Activation::tanh),
      dropout_(at("dropout"), c.family == EncoderFamily::roberta ? head_dropout(c) : 0.0),
      dense_(dense(at("dense"), c.width, c.width, c)) {}

Tensor BertPooler::forward(const Tensor& x) {
  return activate(activation_, dense_(dropout_(squeeze(slice(x, 1, 0, 1), 1))));
}

BertModel::BertModel(nn::Place place, const BertConfig& c, Pooling pooling)
    : Module(std::move(place)),
      embeddings_(at("embeddings"), c),
      encoder_(at("encoder"), c),
      pooler_(pooling == Pooling::yes ? std::make_unique<BertPooler>(at("pooler"), c) : nullptr) {}

Tensor BertModel::hidden(const Tensor& ids, const Tensor& mask) {
  // (B, T) → (B, 1, 1, T): every query of every head sees the real tokens.
  const Tensor seen = mask ? reshape(mask, {mask.shape()[0], 1, 1, mask.shape()[1]}) : Tensor{};
  return encoder_(embeddings_(ids), seen);
}

BertClassifier::BertClassifier(const BertConfig& config)
    : config_(checked(config)),
      bert_(at("bert"), config, Pooling::yes),
      dropout_(at("dropout"), head_dropout(config)),
      classifier_(dense(at("classifier"), config.width, config.classes, config)) {
  if (config.task == BertTask::one_of && config.classes < 2)
    throw ValueError(fmt::format(
        "BERT: to choose one class, at least 2 are needed, but there is {}", config.classes));
}

Tensor BertClassifier::forward(const Tensor& ids, const Tensor& mask) {
  return classifier_(dropout_(bert_(ids, mask)));
}

Tensor BertClassifier::loss(const Tensor& ids, const Tensor& labels, const Tensor& mask) {
  Tensor y = (*this)(ids, mask);  // (B, classes)
  const BertTask task = config_.task                  ? *config_.task
                        : config_.classes == 1        ? BertTask::regression
                        : is_floating(labels.dtype()) ? BertTask::any_of
                                                      : BertTask::one_of;
  if (task == BertTask::one_of) return cross_entropy(y, labels);
  if (config_.classes == 1 && labels.shape().rank() == 1) y = squeeze(y, 1);
  if (!is_floating(labels.dtype()) || labels.shape() != y.shape())
    throw ValueError(fmt::format("BERT: this task's labels are floating of shape {}, but {} came",
                                 to_string(y.shape()), to_string(labels.type())));
  const Tensor wanted = cast(labels, y.dtype());
  return task == BertTask::regression ? mse_loss(y, wanted) : bce_with_logits(y, wanted);
}

}  // namespace ebb::models
