#include <cmath>

#include "onnx/attention.h"
#include "onnx/family.h"
#include "onnx/layers.h"

namespace ebb::onnx {
namespace {

constexpr double eps = 1e-5;  // nn::LayerNorm's default

Value dense(Builder& b, std::string_view name, const Value& x) {
  return linear(b, name, x, nn::Bias::yes);
}

Value attention(Builder& b, std::int64_t layer, const Heads& heads, Decoder& decoder,
                const Value& x) {
  const Builder::Module module(b, "attention");
  const auto split = [&](const char* name) {
    return split_heads(b, dense(b, name, x), heads.queries, heads.size);
  };
  const Value q = split("query"), k = split("key"), v = split("value");
  const auto [keys, values] = decoder.remember(b, layer, {k, v});
  return dense(b, "out", attend(b, q, keys, values, heads, decoder.visible()));
}

}  // namespace

void describe(Builder& b, const models::LanguageModelConfig& c, Cache cache) {
  const Heads heads{.queries = c.heads,
                    .keys = c.heads,
                    .size = c.head_size,
                    .scale = 1.0 / std::sqrt(static_cast<double>(c.head_size))};
  Decoder decoder(b, c.layers, heads, cache);
  Value x =
      b.add(embedding(b, "tokens", decoder.ids()), embedding(b, "positions", decoder.positions()));
  for (std::int64_t i = 0; i < c.layers; ++i) {
    const Builder::Module block(b, "blocks." + std::to_string(i));
    x = b.add(x, attention(b, i, heads, decoder, layer_norm(b, "norm1", x, eps)));
    const Value hidden =
        activate(b, nn::Activation::relu, dense(b, "up", layer_norm(b, "norm2", x, eps)));
    x = b.add(x, dense(b, "down", hidden));
  }
  x = layer_norm(b, "norm", x, eps);
  decoder.finish(b, linear(b, "head", x, nn::Bias::no), c.vocabulary);
}

}  // namespace ebb::onnx
