#include <cmath>

#include "onnx/attention.h"
#include "onnx/family.h"
#include "onnx/layers.h"

namespace ebb::onnx {
namespace {

using models::BertConfig, models::EncoderFamily;

// RoBERTa's positions: a token that is not padding has the number of such tokens up to it, plus the
// id of the padding token; padding has that id. int64, (B, T).
Value counted_positions(Builder& b, const BertConfig& c, const Value& ids) {
  const double padding = static_cast<double>(*c.padding);
  const Value is_padding = b.node("Equal", {ids, b.integer(*c.padding)}, {}, b8);
  const Value real = b.cast(b.node("Not", {is_padding}), f32);
  // In float32, exact to 2^24 tokens: TensorRT's CumSum takes no whole numbers.
  const Value count = b.multiply(b.node("CumSum", {real, b.integer(1)}), real);
  return b.cast(b.add(count, padding), i64);
}

// Word, position and type of every token; all tokens are of the first type, as in ebb's model.
Value embeddings(Builder& b, const BertConfig& c, const Value& ids) {
  const Builder::Module module(b, "embeddings");
  const auto rows = [&](const char* name, const Value& end) {
    const Builder::Module table(b, name);
    return b.node("Slice", {b.weight("weight"), b.integers({0}), end, b.integers({0})});
  };
  const Value words = embedding(b, "word_embeddings", ids),
              positions = c.family == EncoderFamily::roberta
                              ? embedding(b, "position_embeddings", counted_positions(b, c, ids))
                              : rows("position_embeddings", b.axis_size(ids, 1));  // (T, width)
  Value x = b.add(words, positions);
  if (c.family != EncoderFamily::distilbert)
    x = b.add(x, rows("token_type_embeddings", b.integers({1})));  // (1, width)
  return layer_norm(b, "LayerNorm", x, c.eps);
}

// A linear layer and a norm over the sum with the residual.
Value output(Builder& b, const BertConfig& c, const Value& x, const Value& residual) {
  const Builder::Module module(b, "output");
  return layer_norm(b, "LayerNorm", b.add(linear(b, "dense", x, nn::Bias::yes), residual), c.eps);
}

Value attention(Builder& b, const BertConfig& c, const Value& x, const Visible& visible) {
  const std::int64_t size = c.width / c.heads;
  const Heads heads{.queries = c.heads,
                    .keys = c.heads,
                    .size = size,
                    .scale = 1.0 / std::sqrt(static_cast<double>(size))};
  const Builder::Module module(b, "attention");
  Value y;
  {
    const Builder::Module self(b, "self");
    const auto split = [&](const char* name) {
      return split_heads(b, linear(b, name, x, nn::Bias::yes), c.heads, size);
    };
    const Value q = split("query"), k = split("key"), v = split("value");
    y = attend(b, q, k, v, heads, visible);
  }
  return output(b, c, y, x);
}

Value intermediate(Builder& b, const BertConfig& c, const Value& x) {
  const Builder::Module module(b, "intermediate");
  return activate(b, c.activation, linear(b, "dense", x, nn::Bias::yes));
}

// From the first token: (B, T, width) → (B, width).
Value pooled(Builder& b, const BertConfig& c, const Value& x) {
  const Builder::Module module(b, "pooler");
  const Value first = b.node("Gather", {x, b.integer(0)}, {{"axis", std::int64_t{1}}});
  const auto activation =
      c.family == EncoderFamily::distilbert ? nn::Activation::relu : nn::Activation::tanh;
  return activate(b, activation, linear(b, "dense", first, nn::Bias::yes));
}

// The scores of all words for every token: (B, T, width) → (B, T, vocabulary).
Value predictions(Builder& b, const BertConfig& c, const Value& x) {
  const Builder::Module module(b, "cls.predictions");
  Value y;
  {
    const Builder::Module transform(b, "transform");
    // RoBERTa's head uses GELU, whichever activation the encoder has.
    const auto activation =
        c.family == EncoderFamily::roberta ? nn::Activation::gelu : c.activation;
    y = layer_norm(b, "LayerNorm", activate(b, activation, linear(b, "dense", x, nn::Bias::yes)),
                   c.eps);
  }
  const Value words = c.tied ? b.shared_weight("bert.embeddings.word_embeddings.weight")
                             : b.weight("decoder.weight");
  return b.add(project(b, y, words), b.weight("bias"));
}

}  // namespace

void describe(Builder& b, const BertConfig& c, io::EncoderHead head) {
  const bool classifies = head == io::EncoderHead::classifier;
  const Value ids = b.input("input_ids", i64, {batch_axis, sequence_axis}),
              mask = b.input("attention_mask", i64, {batch_axis, sequence_axis});
  Value x;
  {
    const Builder::Module module(b, "bert");
    const Visible visible{b.unsqueeze(b.cast(mask, b8), {1, 2}), b.axis_size(mask, 1)};
    x = embeddings(b, c, ids);
    for (std::int64_t i = 0; i < c.layers; ++i) {
      const Builder::Module layer(b, "encoder.layer." + std::to_string(i));
      const Value y = attention(b, c, x, visible);
      x = output(b, c, intermediate(b, c, y), y);
    }
    if (classifies) x = pooled(b, c, x);
  }
  if (!classifies)
    return b.output(predictions(b, c, x), "logits", {batch_axis, sequence_axis, c.vocabulary});
  b.output(linear(b, "classifier", x, nn::Bias::yes), "logits", {batch_axis, c.classes});
}

}  // namespace ebb::onnx
