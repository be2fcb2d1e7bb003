#include <cmath>

#include "ebb/error.h"
#include "onnx/attention.h"
#include "onnx/family.h"
#include "onnx/layers.h"

namespace ebb::onnx {
namespace {

using models::BertConfig;

// Word, position and type of every token; all tokens are of the first type, as in ebb's model.
Value embeddings(Builder& b, const BertConfig& c, const Value& ids) {
  const Builder::Module module(b, "embeddings");
  const auto rows = [&](const char* name, const Value& end) {
    const Builder::Module table(b, name);
    return b.node("Slice", {b.weight("weight"), b.integers({0}), end, b.integers({0})});
  };
  const Value words = embedding(b, "word_embeddings", ids),
              positions = rows("position_embeddings", b.axis_size(ids, 1)),  // (T, width)
      type = rows("token_type_embeddings", b.integers({1}));                 // (1, width)
  return layer_norm(b, "LayerNorm", b.add(b.add(words, positions), type), c.eps);
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
Value pooled(Builder& b, const Value& x) {
  const Builder::Module module(b, "pooler");
  const Value first = b.node("Gather", {x, b.integer(0)}, {{"axis", std::int64_t{1}}});
  return activate(b, nn::Activation::tanh, linear(b, "dense", first, nn::Bias::yes));
}

}  // namespace

void describe(Builder& b, const BertConfig& c) {
  if (c.family != models::EncoderFamily::bert)
    throw ValueError("ebb export has BERT, but not RoBERTa or DistilBERT");
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
    x = pooled(b, x);
  }
  b.output(linear(b, "classifier", x, nn::Bias::yes), "logits", {batch_axis, c.classes});
}

}  // namespace ebb::onnx
